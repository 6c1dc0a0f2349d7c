// SPDX-License-Identifier: Apache-2.0
// Tensors of one size with content that is known, for suites that move them and check every byte.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "terrace/client.h"

namespace terrace::bench {

struct SetShape {
  std::string name;
  std::size_t count = 0;
  std::uint64_t bytes = 0;  // of each
  std::uint64_t total() const { return count * bytes; }
};

class TensorSet {
 public:
  // Created, and written once. The client outlives it.
  static Result<TensorSet> make(Client& client, const SetShape& shape);

  const std::vector<Tensor>& tensors() const { return tensors_; }
  const SetShape& shape() const { return shape_; }
  // New content in host memory, unlike any that was there before; nothing is fetched for it.
  Result<void> rewrite();
  // Whether every byte is as written last; brings what is not there.
  Result<void> check(Place place = Place::host()) const;
  // Ends the tensors.
  Result<void> destroy();

 private:
  TensorSet(Client& client, SetShape shape) : client_(&client), shape_(std::move(shape)) {}

  Client* client_;
  SetShape shape_;
  std::vector<Tensor> tensors_;
  std::uint64_t version_ = 0;
};

// The same tensors in an order of the seed's.
std::vector<Tensor> shuffled(std::vector<Tensor> tensors, std::uint64_t seed);

}  // namespace terrace::bench
