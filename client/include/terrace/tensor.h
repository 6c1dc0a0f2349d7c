// SPDX-License-Identifier: Apache-2.0
// What a trainer names: tensors, the places they can be in, and how they are leased.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "terrace/dtype.h"

namespace terrace {

namespace client {
class Session;
struct TensorRecord;
}  // namespace client

// Where a tensor is wanted, or is.
class Place {
 public:
  // The trainer's own memory (DRAM, mapped into this process).
  static constexpr Place host() { return Place(0); }
  // Memory of device `index`, 0 to 7 (an emulated one is DRAM that is mapped exactly as HBM would be).
  static constexpr Place device(std::uint32_t index) { return Place(1 + index); }
  // The block tier: a target of swap_out alone, never leased.
  static constexpr Place block() { return Place(0xFFFF); }
  // The number of the wire: 0 host, 1 + N device:N, 65535 block.
  static constexpr Place from_number(std::uint32_t number) { return Place(number); }

  constexpr std::uint32_t number() const { return number_; }
  // "host", "device:0", "block".
  std::string name() const;
  constexpr auto operator<=>(const Place&) const = default;

 private:
  constexpr explicit Place(std::uint32_t number) : number_(number) {}
  std::uint32_t number_;
};

// What a lease allows. The numbers are those of the wire.
enum class Mode : std::uint8_t {
  kRead = 0,       // others may read beside it
  kWrite = 1,      // the old bytes are there (zeros if it was never written), new ones may be written
  kOverwrite = 2,  // the old bytes are not needed and not fetched: what is not written is undefined
};

// A tensor to be created.
struct TensorSpec {
  std::string name{};  // UTF-8, 1 to 175 bytes, unique in the session
  DType dtype = DType::kUint8;
  std::vector<std::int64_t> shape{};    // elements; at most 8 dimensions; empty: a scalar, or flat if `bytes` is given
  std::vector<std::int64_t> strides{};  // elements, not negative; empty: contiguous, row-major
  std::uint64_t bytes = 0;              // 0: as many as shape and strides need
};

// A tensor of one session: a cheap value, copied freely, usable from any thread, and valid (for its description) also
// after the tensor or the client is gone. It owns nothing: the tensor lives until destroy() or the session's end.
class Tensor {
 public:
  // Of no session; every call refuses it (kInvalidArgument), and its description is empty.
  Tensor() = default;

  const std::string& name() const;
  std::uint64_t bytes() const;
  DType dtype() const;
  const std::vector<std::int64_t>& shape() const;    // elements
  const std::vector<std::int64_t>& strides() const;  // elements; always filled in
  // The session's number for it, as the daemon prints it; 0 for a tensor of no session.
  std::uint64_t handle() const;

 private:
  friend class client::Session;
  explicit Tensor(std::shared_ptr<const client::TensorRecord> record);
  const client::TensorRecord& record() const;

  std::shared_ptr<const client::TensorRecord> record_;
};

}  // namespace terrace
