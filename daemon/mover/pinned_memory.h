// SPDX-License-Identifier: Apache-2.0
// Which of the sessions' DRAM is pinned for the GPUs' copy engines (cuMemHostRegister).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>

#include "base/ids.h"
#include "mover/workers.h"
#include "tier/device/cuda_context.h"
#include "tier/extent.h"

namespace terrace::mover {

// The reactor's. Memory is pinned in slices, several at once, after it was handed out: until then, and where pinning
// fails, copies go through the daemon's own pinned memory. A slice that failed is never taken for pinned. It is let go
// of on the workers' lane of segments, so that this comes before whatever is done there next to its memory.
class PinnedMemory {
 public:
  static constexpr std::uint64_t kSliceBytes = 64 * std::uint64_t{1024} * 1024;

  // `context`: any GPU's, which outlives it, with the workers' pinners started; null where there is none: then nothing
  // here does anything.
  PinnedMemory(Workers& workers, tier::CudaContext* context);
  // Lets go of all that is left. Must not run while jobs are in flight.
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  // Begins to pin memory of a session, which stays until remove() or drop() and what is submitted to the lane of
  // segments after that.
  void add(SessionId session, TierId tier, tier::Extent extent, std::byte* memory);
  void remove(SessionId session, TierId tier, tier::Extent extent);
  void drop(SessionId session);
  // What nobody has begun to pin is not pinned any more, nor let go of: what is left are the jobs that run.
  void stop();

  // How many of `bytes` at `memory` lie in one registration with the first of them; 0: the first is not pinned.
  std::uint64_t run_bytes(const std::byte* memory, std::uint64_t bytes) const;
  // Whether all of it is pinned, if in several registrations.
  bool covers(const std::byte* memory, std::uint64_t bytes) const;

  std::size_t in_flight() const { return jobs_.size(); }
  std::uint64_t pinned_bytes() const { return pinned_bytes_; }
  std::uint64_t refused_bytes() const { return refused_bytes_; }  // could not be pinned, since the start

 private:
  enum class State : unsigned char {
    kQueued,  // then by whoever is first: kPinning by its thread, or kLeft
    kPinning,
    kPinned,
    kRefused,
    kLeft,
  };
  struct Piece {
    std::byte* memory = nullptr;
    std::uint64_t bytes = 0;
    SessionId session{};
    TierId tier{};
    std::uint64_t offset = 0;
  };
  struct Slice {
    Piece piece;
    std::atomic<State> state = State::kQueued;
    bool leaving = false;  // the reactor's, as the next
    bool usable = false;
  };
  class Work;
  class Pin;
  class Unpin;
  using Slices = std::map<const std::byte*, std::shared_ptr<Slice>>;
  static bool change(Slice& slice, State from, State to) { return slice.state.compare_exchange_strong(from, to); }
  void unregister(Slice& slice);
  void submit(std::unique_ptr<Work> work, Workers::Lane lane);
  Slices::iterator erase(Slices::iterator at);

  Workers& workers_;
  tier::CudaContext* context_;
  Slices slices_;                          // by their first byte
  std::list<std::unique_ptr<Work>> jobs_;  // in flight
  std::uint64_t pinned_bytes_ = 0;
  std::uint64_t refused_bytes_ = 0;
};

}  // namespace terrace::mover
