// SPDX-License-Identifier: Apache-2.0
// Which memory of a range is pinned for this process's own copies to and from its GPU.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "gpu.h"

namespace terrace::client {

// Each piece is one registration with the driver, which refuses to copy across two of them, or what is pinned in part
// (cuMemcpyHtoD). No two overlap. Thread-safe: several threads pin pieces at once, and whoever wants what another one
// is at waits for it. remove() everything before the end.
class HostPins {
 public:
  HostPins() = default;
  HostPins(const HostPins&) = delete;
  HostPins& operator=(const HostPins&) = delete;
  ~HostPins() = default;

  // Pins it as one piece, unless it is one already. Pieces that it overlaps are let go of first: nobody copies from
  // them any more. What the driver refuses is not pinned, and not tried again while it is the same piece.
  void pin(const std::shared_ptr<Gpu>& gpu, std::byte* memory, std::uint64_t bytes, bool read_only);
  // Lets go of the pieces that overlap this.
  void remove(const std::byte* memory, std::uint64_t bytes);
  std::uint64_t pinned_bytes() const;

 private:
  struct Piece {
    std::shared_ptr<Gpu> gpu;  // null: the driver refused it, or was not done yet
    std::uint64_t bytes = 0;
    bool under_way = false;  // a thread is at the driver for it: it stays as it is
  };
  using Pieces = std::map<std::byte*, Piece>;
  Pieces::iterator first_beyond(const std::byte* memory);
  bool is_under_way(const std::byte* memory, std::uint64_t bytes);
  // Waits until nothing there is under way.
  void settle(std::unique_lock<std::mutex>& lock, const std::byte* memory, std::uint64_t bytes);
  void let_go(const std::byte* memory, std::uint64_t bytes);

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable settled_;
  Pieces pieces_;
  std::uint64_t pinned_bytes_ = 0;
};

}  // namespace terrace::client
