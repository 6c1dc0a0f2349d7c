// SPDX-License-Identifier: Apache-2.0
// Memory mappings with one owner: a reserved range of address space, into which pieces are mapped side by side.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/fd.h"
#include "terrace/error.h"

namespace terrace {

// Address space of this process, unmapped when the owner goes. What is mapped into it is left out of core files
// (MADV_DONTDUMP): it holds trainers' bytes, or tables sized for the largest node, whose every page a dump would touch.
// Not thread-safe.
class AddressRange {
 public:
  AddressRange() = default;
  // Reserves `bytes` (a multiple of 4 KiB) without memory behind them, aligned to 2 MiB.
  static Result<AddressRange> reserve(std::uint64_t bytes);
  // Maps the whole of `fd` shared: for a region that is one piece.
  static Result<AddressRange> map(int fd, std::uint64_t bytes, int protection);

  AddressRange(AddressRange&& other) noexcept;
  AddressRange& operator=(AddressRange&& other) noexcept;
  AddressRange(const AddressRange&) = delete;
  AddressRange& operator=(const AddressRange&) = delete;
  ~AddressRange();

  // Maps `bytes` of `fd`, from its offset `from` on, at `offset` of the range (all multiples of 4 KiB, inside the
  // range).
  Result<void> place(std::uint64_t offset, std::uint64_t bytes, int fd, int protection, std::uint64_t from = 0);
  // Takes the pages at `offset` away again; the address space stays reserved.
  Result<void> clear(std::uint64_t offset, std::uint64_t bytes);

  std::byte* data() const { return data_; }
  std::uint64_t size() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
  void* whole_ = nullptr;
  std::uint64_t whole_bytes_ = 0;
};

// A new memfd of `bytes`, close-on-exec, sealed against shrinking, growing and further seals, readable and writable by
// this uid alone. `name` shows in /proc.
Result<Fd> sealed_memfd(const char* name, std::uint64_t bytes, unsigned memfd_flags = 0);

}  // namespace terrace
