// SPDX-License-Identifier: Apache-2.0
#include "front/sessions/session_region.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <new>
#include <utility>

namespace terrace::front {
namespace {

// Threads have logs of their own, and what is learned from is the order of them all: those from `added` on are merged
// with those before.
void put_in_order(std::vector<engine::Access>& accesses, std::size_t added) {
  if (added == 0 || added == accesses.size() || accesses[added - 1].at <= accesses[added].at) return;
  std::vector<engine::Access> merged;
  merged.reserve(accesses.size());
  const std::span all(accesses);
  std::ranges::merge(all.first(added), all.subspan(added), std::back_inserter(merged), {}, &engine::Access::at,
                     &engine::Access::at);
  accesses = std::move(merged);
}

}  // namespace

Result<SessionRegion> SessionRegion::create(std::uint32_t slots) {
  shm::RegionHeader layout{};
  shm::lay_out(layout, slots);
  auto memory = sealed_memfd("terrace-session", layout.region_bytes);
  if (!memory) return std::unexpected(memory.error());
  auto mapping = AddressRange::map(memory->get(), layout.region_bytes, PROT_READ | PROT_WRITE);
  if (!mapping) return std::unexpected(mapping.error());
  shm::lay_out(*new (mapping->data()) shm::RegionHeader{}, slots);
  return SessionRegion(std::move(*memory), std::move(*mapping), layout);
}

Result<SessionRegion> SessionRegion::adopt(Fd memory, std::uint32_t slots) {
  shm::RegionHeader layout{};
  shm::lay_out(layout, slots);
  struct stat there{};
  if (fstat(memory.get(), &there) != 0 || static_cast<std::uint64_t>(there.st_size) != layout.region_bytes)
    return fail(ErrorCode::kFailedPrecondition,
                fmt::format("a session's region has {} bytes, not {}", there.st_size, layout.region_bytes), errno);
  auto mapping = AddressRange::map(memory.get(), layout.region_bytes, PROT_READ | PROT_WRITE);
  if (!mapping) return std::unexpected(mapping.error());
  SessionRegion region(std::move(memory), std::move(*mapping), layout);
  std::vector<engine::Access> counted;
  region.drain_logs({}, counted);
  return region;
}

std::uint32_t SessionRegion::unanswered() const {
  const std::uint32_t taken = view_.submission_index->head.load(std::memory_order_acquire);
  return std::min(taken - completions_tail(), shm::kRingEntries);
}

std::uint64_t SessionRegion::begin_epoch() {
  for (shm::RingIndex* index : {view_.submission_index, view_.completion_index}) {
    index->head.store(0);
    index->tail.store(0);
    index->polled.store(0);
  }
  submissions_ = {*view_.submission_index, view_.submissions};
  completions_ = {*view_.completion_index, view_.completions};
  return view_.header->epoch.fetch_add(1) + 1;
}

SessionRegion::SessionRegion(Fd memory, AddressRange mapping, const shm::RegionHeader& layout)
    : memory_(std::move(memory)), mapping_(std::move(mapping)), view_(shm::view_region(mapping_.data(), layout)) {
  submissions_ = {*view_.submission_index, view_.submissions};
  completions_ = {*view_.completion_index, view_.completions};
  for (std::uint32_t log = 0; log < shm::kLogCount; ++log) logs_[log] = {view_.log_index(log), view_.log_entries(log)};
}

engine::LeaseTable SessionRegion::table() { return engine::LeaseTable(view_.table); }

Result<std::optional<shm::Submission>> SessionRegion::next_submission() {
  std::array<shm::Submission, 1> next;
  const auto count = submissions_.pop(next);
  if (!count) return std::unexpected(count.error());
  if (*count == 0) return std::nullopt;
  return next[0];
}

Result<void> SessionRegion::complete(const shm::Completion& completion) {
  const auto pushed = completions_.push(completion);
  if (!pushed) return std::unexpected(pushed.error());
  if (!*pushed)
    return fail(ErrorCode::kInvalidArgument, "the trainer submits requests and does not read their completions");
  completions_.wake();
  return {};
}

Result<std::vector<std::byte>> SessionRegion::read_block(const shm::Submission& submission, std::uint64_t bytes) const {
  const std::uint64_t arena = view_.arena.size();
  if (submission.block_bytes > arena || submission.block_offset > arena - submission.block_bytes)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("a block of {} bytes at offset {} does not lie in the arena of {} bytes",
                            submission.block_bytes, submission.block_offset, arena));
  if (submission.block_bytes < std::max<std::uint64_t>(bytes, shm::kBlockBytesMin))
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("a block of {} bytes; this request needs {}", submission.block_bytes,
                            std::max<std::uint64_t>(bytes, shm::kBlockBytesMin)));
  const auto block = view_.arena.subspan(submission.block_offset, bytes);
  return std::vector<std::byte>(block.begin(), block.end());
}

std::uint32_t SessionRegion::write_block(const shm::Submission& submission, std::span<const std::byte> bytes) {
  const std::uint64_t arena = view_.arena.size();
  if (submission.block_bytes > arena || submission.block_offset > arena - submission.block_bytes) return 0;
  const std::size_t count = std::min<std::size_t>(bytes.size(), submission.block_bytes);
  if (count > 0) std::memcpy(view_.arena.data() + submission.block_offset, bytes.data(), count);
  return static_cast<std::uint32_t>(count);
}

std::uint64_t SessionRegion::drain_logs(const StampClock& clock, std::vector<engine::Access>& accesses) {
  std::uint64_t fast_leases = 0;
  std::array<shm::LogEntry, shm::kLogEntries> entries;
  for (shm::LogReader& log : logs_) {
    const std::size_t others = accesses.size();
    const auto drained = log.drain(entries);
    fast_leases += drained.fast_leases;
    for (const shm::LogEntry& entry : std::span(entries).first(drained.entries))
      accesses.push_back({Slot{entry.slot}, static_cast<shm::Mode>(entry.mode), clock.time_of(entry.stamp)});
    put_in_order(accesses, others);
  }
  const std::uint64_t unlogged = view_.header->unlogged.load(std::memory_order_relaxed);
  fast_leases += unlogged - unlogged_seen_;
  unlogged_seen_ = unlogged;
  return fast_leases;
}

}  // namespace terrace::front
