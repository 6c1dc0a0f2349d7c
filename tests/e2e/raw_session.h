// SPDX-License-Identifier: Apache-2.0
// A session whose ring entries, messages and mappings are the test's own, past all that the library checks.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "calls.h"
#include "data_socket.h"
#include "shm/region.h"
#include "terrace/tensor.h"

namespace terrace::e2e {

class RawSession {
 public:
  // With the default guarantees. Throws std::runtime_error if the daemon refuses.
  explicit RawSession(const std::string& data_socket);
  RawSession(const RawSession&) = delete;
  RawSession& operator=(const RawSession&) = delete;
  ~RawSession();

  // The daemon's answer; also the handles, of a create.
  Result<std::vector<std::uint64_t>> ask(const client::Question& question);
  Result<std::vector<std::uint64_t>> create(const shm::CreateRecord& record);
  void ring() const;
  // Whether the daemon has ended the session, within `patience`.
  bool ended(std::chrono::nanoseconds patience = std::chrono::seconds(60)) const;
  // The next segment that the daemon passes, and its descriptor.
  struct Segment {
    shm::SegmentMessage message;
    client::Descriptor memory;
  };
  Result<Segment> segment() const;

  std::uint32_t session() const { return session_; }
  const std::array<std::uint8_t, 16>& token() const { return token_; }
  const shm::RegionView& region() const { return region_; }
  int region_descriptor() const { return region_memory_.get(); }

 private:
  std::uint32_t session_ = 0;
  std::array<std::uint8_t, 16> token_{};
  client::Descriptor region_memory_;
  std::byte* base_ = nullptr;
  std::uint64_t bytes_ = 0;
  shm::RegionView region_;
  client::Descriptor doorbell_;
  client::DataSocket socket_;
  std::optional<client::Calls> calls_;
};

// One tensor of bytes.
shm::CreateRecord record_named(const char* name, std::uint64_t bytes);

}  // namespace terrace::e2e
