// SPDX-License-Identifier: Apache-2.0
#include "mover/registered_buffers.h"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>

#include "base/bytes.h"

namespace terrace::mover {

namespace {

constexpr int kProbes = 32;  // registrations of as many pages together as a slice has

}  // namespace

RegisteredBuffers::RegisteredBuffers(Ring& ring, std::span<std::byte> probe) : ring_(ring) {
  static_assert(kSliceBytes % (kProbes * kPageBytes) == 0);
  if (!ring_.reserve_buffers(kSlicesMax)) return;
  const std::span<std::byte> part = probe.first(std::min<std::uint64_t>(probe.size(), kSliceBytes / kProbes));
  (void)::madvise(part.data(), part.size(), MADV_NOHUGEPAGE);  // of a huge page it would count once
  int registered = 0;
  while (registered < kProbes && ring_.set_buffer(registered, part)) ++registered;
  allowed_ = registered == kProbes;
  while (registered > 0) (void)ring_.set_buffer(--registered, {});
  if (!allowed_) return;
  free_slots_.reserve(kSlicesMax);
  for (int slot = kSlicesMax - 1; slot >= 0; --slot) free_slots_.push_back(slot);
}

void RegisteredBuffers::add(SessionId session, TierId tier, tier::Extent extent, std::byte* memory) {
  if (!allowed_) return;
  for (std::uint64_t at = 0; at < extent.bytes; at += kSliceBytes) {
    slices_.emplace(memory + at, Slice{.memory = {memory + at, std::min(kSliceBytes, extent.bytes - at)},
                                       .session = session,
                                       .tier = tier,
                                       .offset = extent.offset + at});
  }
}

void RegisteredBuffers::remove(SessionId session, TierId tier, tier::Extent extent) {
  for (auto at = slices_.begin(); at != slices_.end();) {
    const Slice& slice = at->second;
    const bool leaves =
        slice.session == session && slice.tier == tier && slice.offset >= extent.offset && slice.offset < extent.end();
    at = leaves ? erase(at) : std::next(at);
  }
}

void RegisteredBuffers::drop(SessionId session) {
  for (auto at = slices_.begin(); at != slices_.end();) at = at->second.session == session ? erase(at) : std::next(at);
}

RegisteredBuffers::Slices::iterator RegisteredBuffers::erase(Slices::iterator at) {
  const Slice& slice = at->second;
  if (slice.slot != Ring::kUnregistered) {
    (void)ring_.set_buffer(slice.slot, {});
    free_slots_.push_back(slice.slot);
    registered_bytes_ -= slice.memory.size();
  }
  return slices_.erase(at);
}

void RegisteredBuffers::enroll(Slice& slice) {
  if (!allowed_ || free_slots_.empty()) return;
  const int slot = free_slots_.back();
  if (!ring_.set_buffer(slot, slice.memory)) {
    allowed_ = false;  // the limit is reached: not asked again for every chunk
    return;
  }
  free_slots_.pop_back();
  slice.slot = slot;
  registered_bytes_ += slice.memory.size();
}

int RegisteredBuffers::find(std::span<const std::byte> memory) {
  auto at = slices_.upper_bound(memory.data());
  if (at == slices_.begin()) return Ring::kUnregistered;
  Slice& slice = std::prev(at)->second;
  const std::byte* const end = slice.memory.data() + slice.memory.size();
  if (memory.data() + memory.size() > end) return Ring::kUnregistered;
  if (slice.slot == Ring::kUnregistered) enroll(slice);
  return slice.slot;
}

}  // namespace terrace::mover
