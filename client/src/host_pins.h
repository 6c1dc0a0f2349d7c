// SPDX-License-Identifier: Apache-2.0
// Which of the session's host memory is pinned for this process's own copies to and from its GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "gpu.h"

namespace terrace::client {

// One view of a range. One thread at a time. The driver refuses to copy what is pinned in part (cuMemcpyHtoD), and
// tensors straddle segments: so a view is pinned whole, or not at all.
class HostPins {
 public:
  static constexpr std::uint64_t kPieceBytes = 64ull << 20;

  HostPins() = default;
  HostPins(const HostPins&) = delete;
  HostPins& operator=(const HostPins&) = delete;
  ~HostPins() { clear(); }

  // False: not all of it could be pinned, and what could be is for the caller to clear().
  bool add(const std::shared_ptr<Gpu>& gpu, std::byte* memory, std::uint64_t bytes, bool read_only);
  // Lets go of what lies there, before it is unmapped.
  void remove(const std::byte* memory, std::uint64_t bytes);
  void clear();
  std::uint64_t pinned_bytes() const { return pinned_bytes_; }

 private:
  struct Piece {
    std::shared_ptr<Gpu> gpu;
    std::uint64_t bytes = 0;
  };
  std::map<std::byte*, Piece> pieces_;
  std::uint64_t pinned_bytes_ = 0;
};

}  // namespace terrace::client
