// SPDX-License-Identifier: Apache-2.0
// The address space of one place: a reserved range into which the daemon's segments are mapped as they come, once
// read-only and once writable (a device's once, writable).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "shm/message.h"
#include "terrace/error.h"

namespace terrace::client {

class PlaceRange {
 public:
  // Segments are whole runs of these.
  static constexpr std::uint64_t kGranuleBytes = 2ull << 20;

  static Result<std::unique_ptr<PlaceRange>> reserve(const shm::PlaceRecord& record);
  PlaceRange(const PlaceRange&) = delete;
  PlaceRange& operator=(const PlaceRange&) = delete;
  ~PlaceRange();

  const shm::PlaceRecord& record() const { return record_; }

  // Whether exactly this segment is mapped. One thread at a time, as both below.
  bool has(std::uint64_t offset, std::uint64_t bytes, int fd) const;
  // kInvalidArgument for a segment that does not fit the range.
  Result<void> map(std::uint64_t offset, std::uint64_t bytes, int fd);
  Result<void> unmap(std::uint64_t offset, std::uint64_t bytes);
  // Unmaps every segment that does not begin at one of these offsets.
  Result<void> keep_only(const std::set<std::uint64_t>& offsets);

  // Whether [offset, offset + bytes) lies in the range. Thread-safe, as all below.
  bool holds(std::uint64_t offset, std::uint64_t bytes) const {
    return offset <= record_.range_bytes && bytes <= record_.range_bytes - offset;
  }
  // Whether every byte of it is mapped.
  bool mapped(std::uint64_t offset, std::uint64_t bytes) const;
  std::byte* address(std::uint64_t offset, bool writable) const {
    return (writable || record_.writable_only != 0 ? writable_ : readable_) + offset;
  }

 private:
  struct Segment {
    std::uint64_t bytes = 0;
    std::uint64_t inode = 0;  // memfds have one each
  };
  explicit PlaceRange(const shm::PlaceRecord& record);
  Result<void> check(std::uint64_t offset, std::uint64_t bytes) const;
  // Forgets the segments that touch this range.
  void strike_out(std::uint64_t offset, std::uint64_t bytes);
  void set_mapped(std::uint64_t offset, std::uint64_t bytes, bool mapped);

  shm::PlaceRecord record_;
  std::uint64_t reserved_bytes_ = 0;  // the range, in whole granules
  std::byte* readable_ = nullptr;     // null where the place is mapped once
  std::byte* writable_ = nullptr;
  std::map<std::uint64_t, Segment> segments_;         // by offset
  std::vector<std::atomic<std::uint64_t>> granules_;  // one bit each: mapped
};

}  // namespace terrace::client
