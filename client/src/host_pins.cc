// SPDX-License-Identifier: Apache-2.0
#include "host_pins.h"

#include <algorithm>

namespace terrace::client {

void HostPins::clear() {
  for (auto& [memory, piece] : pieces_) piece.gpu->unpin(memory);
  pieces_.clear();
  pinned_bytes_ = 0;
}

bool HostPins::add(const std::shared_ptr<Gpu>& gpu, std::byte* memory, std::uint64_t bytes, bool read_only) {
  for (std::uint64_t at = 0; at < bytes; at += kPieceBytes) {
    const std::uint64_t size = std::min(kPieceBytes, bytes - at);
    if (!gpu->pin(memory + at, size, read_only)) return false;
    pieces_.emplace(memory + at, Piece{.gpu = gpu, .bytes = size});
    pinned_bytes_ += size;
  }
  return true;
}

void HostPins::remove(const std::byte* memory, std::uint64_t bytes) {
  for (auto at = pieces_.begin(); at != pieces_.end();) {
    if (at->first < memory || at->first >= memory + bytes) {
      ++at;
      continue;
    }
    at->second.gpu->unpin(at->first);
    pinned_bytes_ -= at->second.bytes;
    at = pieces_.erase(at);
  }
}

}  // namespace terrace::client
