// SPDX-License-Identifier: Apache-2.0
// Which of the sessions' memory the ring knows already, so that I/O need not pin its pages anew each time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "base/ids.h"
#include "mover/ring.h"
#include "tier/extent.h"

namespace terrace::mover {

// Memory is registered in slices, each when I/O first touches it: registering a GiB at once stalls the reactor for 20
// ms. What memlock does not allow stays unregistered, which costs time and nothing else. The reactor's.
class RegisteredBuffers {
 public:
  static constexpr std::uint64_t kSliceBytes = 64 * std::uint64_t{1024} * 1024;
  static constexpr unsigned kSlicesMax = 16384;  // the kernel's bound

  // `probe`: memory of our own, to find out on whether a slice may be registered: a part of it is, as often as a slice
  // has such parts, since to back 64 MiB takes longer than all else at the start. It is released again.
  RegisteredBuffers(Ring& ring, std::span<std::byte> probe);

  // Memory of a session that I/O may come to touch, from now on until remove() or drop(), which must come before the
  // memory goes: what is registered keeps its pages, and its address would stand for them.
  void add(SessionId session, TierId tier, tier::Extent extent, std::byte* memory);
  void remove(SessionId session, TierId tier, tier::Extent extent);
  void drop(SessionId session);

  // The registration that covers all of `memory`, made now if need be; Ring::kUnregistered if there is none.
  int find(std::span<const std::byte> memory);

  bool allowed() const { return allowed_; }
  std::uint64_t registered_bytes() const { return registered_bytes_; }

 private:
  struct Slice {
    std::span<std::byte> memory;
    SessionId session{};
    TierId tier{};
    std::uint64_t offset = 0;  // in the session's address space
    int slot = Ring::kUnregistered;
  };
  using Slices = std::map<const std::byte*, Slice>;

  void enroll(Slice& slice);
  Slices::iterator erase(Slices::iterator at);

  Ring& ring_;
  bool allowed_ = false;
  std::uint64_t registered_bytes_ = 0;
  std::vector<int> free_slots_;
  Slices slices_;  // by their first byte
};

}  // namespace terrace::mover
