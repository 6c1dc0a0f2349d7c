// SPDX-License-Identifier: Apache-2.0
#include "host_pins.h"

#include <iterator>

namespace terrace::client {

// The first piece that ends behind `memory`.
HostPins::Pieces::iterator HostPins::first_beyond(const std::byte* memory) {
  auto at = pieces_.upper_bound(const_cast<std::byte*>(memory));
  if (at == pieces_.begin()) return at;
  const auto before = std::prev(at);
  return before->first + before->second.bytes > memory ? before : at;
}

bool HostPins::is_under_way(const std::byte* memory, std::uint64_t bytes) {
  for (auto at = first_beyond(memory); at != pieces_.end() && at->first < memory + bytes; ++at)
    if (at->second.under_way) return true;
  return false;
}

void HostPins::settle(std::unique_lock<std::mutex>& lock, const std::byte* memory, std::uint64_t bytes) {
  settled_.wait(lock, [&] { return !is_under_way(memory, bytes); });
}

void HostPins::let_go(const std::byte* memory, std::uint64_t bytes) {
  auto at = first_beyond(memory);
  while (at != pieces_.end() && at->first < memory + bytes) {
    if (at->second.gpu != nullptr) {
      at->second.gpu->unpin(at->first);
      pinned_bytes_ -= at->second.bytes;
    }
    at = pieces_.erase(at);
  }
}

void HostPins::pin(const std::shared_ptr<Gpu>& gpu, std::byte* memory, std::uint64_t bytes, bool read_only) {
  std::unique_lock lock(mutex_);
  settle(lock, memory, bytes);
  const auto there = pieces_.find(memory);
  if (there != pieces_.end() && there->second.bytes == bytes) return;
  let_go(memory, bytes);
  Piece& piece = pieces_.emplace(memory, Piece{.gpu = nullptr, .bytes = bytes, .under_way = true}).first->second;
  lock.unlock();
  const bool pinned = gpu->pin(memory, bytes, read_only);
  lock.lock();
  piece.under_way = false;
  if (pinned) {
    piece.gpu = gpu;
    pinned_bytes_ += bytes;
  }
  settled_.notify_all();
}

void HostPins::remove(const std::byte* memory, std::uint64_t bytes) {
  std::unique_lock lock(mutex_);
  settle(lock, memory, bytes);
  let_go(memory, bytes);
}

std::uint64_t HostPins::pinned_bytes() const {
  const std::lock_guard lock(mutex_);
  return pinned_bytes_;
}

}  // namespace terrace::client
