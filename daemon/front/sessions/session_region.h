// SPDX-License-Identifier: Apache-2.0
// The daemon's side of a session region: the memory that one trainer and the daemon share, and what is read from it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/fd.h"
#include "base/ids.h"
#include "base/mapping.h"
#include "engine/engine.h"
#include "engine/values/lease_table.h"
#include "front/sessions/stamp_clock.h"
#include "shm/layout.h"
#include "shm/log.h"
#include "shm/region.h"
#include "shm/ring.h"
#include "terrace/error.h"

namespace terrace::front {

// Owns the region and the daemon's private ring indices. Reactor thread only. Every byte read here is an attacker's: it
// is copied once, then checked.
class SessionRegion {
 public:
  // A fresh sealed memfd, laid out for `slots` tensors.
  static Result<SessionRegion> create(std::uint32_t slots);
  // One of a former daemon's, as it is. kFailedPrecondition: it is not of `slots` tensors.
  static Result<SessionRegion> adopt(Fd memory, std::uint32_t slots);

  int descriptor() const { return memory_.get(); }
  std::uint64_t bytes() const { return mapping_.size(); }
  engine::LeaseTable table();

  // The next submission, if there is one. An error means that the trainer broke the protocol: end the session.
  Result<std::optional<shm::Submission>> next_submission();
  // Whether there is one, or the protocol is broken: next_submission() says.
  bool has_submission() const {
    const auto waiting = submissions_.waiting();
    return !waiting || *waiting != 0;
  }
  // While true, the trainer does not ring its doorbell. After false, look at has_submission() once more.
  void set_polled(bool polled) { submissions_.set_polled(polled); }
  // The tail of the completion ring, as the region has it: a former daemon's answers.
  std::uint32_t completions_tail() const { return view_.completion_index->tail.load(std::memory_order_acquire); }
  // How many requests a former daemon had taken and not answered, as the region says; at most what a ring holds.
  std::uint32_t unanswered() const;
  // The trainer needs the session no more.
  bool closed() const { return view_.header->closed.load(std::memory_order_acquire) != 0; }
  // How many were answered since the rings began.
  std::uint32_t completed() const { return completions_.tail(); }
  // Both rings begin anew, for a trainer that waits for it and touches neither. The new epoch.
  std::uint64_t begin_epoch();

  // Answers one; wakes who waits for it. An error means that the trainer does not read its completions.
  Result<void> complete(const shm::Completion& completion);

  // A private copy of `bytes` at the start of a block; InvalidArgument names a block that does not lie in the arena, or
  // is too small.
  Result<std::vector<std::byte>> read_block(const shm::Submission& submission, std::uint64_t bytes) const;
  // Writes to the start of a block, cut to its size; how many bytes. None where the block does not lie in the arena: a
  // request is refused for its count, too, before its block was looked at.
  std::uint32_t write_block(const shm::Submission& submission, std::span<const std::byte> bytes);

  // Appends what the access logs hold since the last call, and returns how many fast leases there were (more than
  // entries, if logs overflowed or threads had none). `clock` says when they were taken.
  std::uint64_t drain_logs(const StampClock& clock, std::vector<engine::Access>& accesses);

 private:
  SessionRegion(Fd memory, AddressRange mapping, const shm::RegionHeader& layout);

  Fd memory_;
  AddressRange mapping_;
  shm::RegionView view_;  // by the daemon's own layout: the header in the region is the trainer's to scribble on
  shm::RingConsumer<shm::Submission> submissions_;
  shm::RingProducer<shm::Completion> completions_;
  std::array<shm::LogReader, shm::kLogCount> logs_;
  std::uint64_t unlogged_seen_ = 0;
};

}  // namespace terrace::front
