// SPDX-License-Identifier: Apache-2.0
#include "calls.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

namespace terrace::client {
namespace {

// How long a waiter looks at the ring before it sleeps: a small miss is answered in about this time.
constexpr std::chrono::microseconds kSpin{15};
// Sleepers look again this often, for what no tail tells them (the daemon's end).
constexpr std::chrono::milliseconds kSleepMax{50};

// gRPC's UNKNOWN (2) and OUT_OF_RANGE (11) are not among ours.
constexpr bool is_known(std::uint32_t code) { return code >= 1 && code <= 16 && code != 2 && code != 11; }

void ring(int doorbell) {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(doorbell, &one, sizeof one);  // fails only with the daemon gone
}

}  // namespace

std::unexpected<Error> client_closed() {
  return fail(ErrorCode::kFailedPrecondition, "the client is closed: connect again");
}

Calls::Calls(const shm::RegionView& region, int doorbell, GiveBack give_back)
    : region_(region),
      doorbell_(doorbell),
      give_back_(std::move(give_back)),
      arena_(region.arena.size()),
      submissions_(*region.submission_index, region.submissions),
      completions_(*region.completion_index, region.completions) {}

Result<std::shared_ptr<Call>> Calls::submit(const Question& question, Deadline deadline) {
  while (true) {
    const std::uint32_t seen = region_.completion_index->tail.load(std::memory_order_seq_cst);
    {
      const Lock lock(mutex_);
      drain();
      if (waits_ended()) return client_closed();
      if (!broken_) {
        if (std::shared_ptr<Call> call = try_submit(question)) return call;
      }
      if (broken_) return std::unexpected(*broken_);
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      return fail(ErrorCode::kResourceExhausted, "too many requests of this session are under way (" +
                                                     std::to_string(shm::kRingEntries) + " requests, " +
                                                     std::to_string(region_.arena.size()) +
                                                     " bytes of arguments): wait for some of them first");
    }
    sleep(seen, deadline);
  }
}

std::shared_ptr<Call> Calls::try_submit(const Question& question) {
  // Never more calls than the completion ring has entries, so that the daemon can always answer.
  if (under_way_.size() >= shm::kRingEntries) return nullptr;
  const std::uint64_t bytes = question.handles.size_bytes() + question.records.size_bytes();
  const std::optional<Arena::Block> block = arena_.take(bytes);
  if (!block) return nullptr;
  std::byte* content = region_.arena.data() + block->offset;
  if (!question.handles.empty()) std::memcpy(content, question.handles.data(), question.handles.size_bytes());
  if (!question.records.empty()) std::memcpy(content, question.records.data(), question.records.size_bytes());

  auto call = std::make_shared<Call>();
  call->id = ++last_id_;
  call->operation = question.operation;
  call->mode = question.mode;
  call->handles.assign(question.handles.begin(), question.handles.end());
  call->block = *block;
  call->overdue = deadline_after(question.timeout) + kGrace;
  const std::size_t count = question.handles.size() + question.records.size();
  const Result<bool> pushed =
      submissions_.push({.id = call->id,
                         .operation = question.operation,
                         .mode = static_cast<std::uint32_t>(question.mode),
                         .place = question.place,
                         .count = static_cast<std::uint32_t>(count),
                         .block_offset = block->offset,
                         .block_bytes = block->bytes,
                         .timeout_ns = static_cast<std::uint64_t>(std::max<std::int64_t>(question.timeout.count(), 0)),
                         .value = question.value});
  if (!pushed || !*pushed) {
    arena_.give_back(*block);
    if (!pushed) break_off(pushed.error());
    return nullptr;
  }
  if (question.operation == shm::Operation::kCreate) call->handles.resize(count);
  under_way_.emplace(call->id, call);
  ring(doorbell_);
  return call;
}

bool Calls::ready(const std::shared_ptr<Call>& call) {
  const Lock lock(mutex_);
  drain();
  return call->done;
}

bool Calls::wait(const std::shared_ptr<Call>& call, Deadline deadline) {
  while (true) {
    const std::uint32_t seen = region_.completion_index->tail.load(std::memory_order_seq_cst);
    if (ready(call)) return true;
    if (waits_ended() || std::chrono::steady_clock::now() >= deadline) return false;
    sleep(seen, deadline);
  }
}

void Calls::sleep(std::uint32_t seen, Deadline deadline) {
  if (spin(seen)) return;
  const shm::WaiterCount waiting(*region_.completion_index);
  if (region_.completion_index->tail.load(std::memory_order_seq_cst) != seen) return;
  const std::chrono::nanoseconds left = deadline - std::chrono::steady_clock::now();
  shm::futex_wait(region_.completion_index->tail, seen, std::min<std::chrono::nanoseconds>(left, kSleepMax));
}

bool Calls::spin(std::uint32_t seen) const {
  const Deadline end = std::chrono::steady_clock::now() + kSpin;
  while (std::chrono::steady_clock::now() < end) {
    if (region_.completion_index->tail.load(std::memory_order_acquire) != seen) return true;
  }
  return false;
}

void Calls::end_waits() {
  waits_ended_.store(true, std::memory_order_release);
  shm::futex_wake(region_.completion_index->tail);
}

void Calls::abandon(const std::shared_ptr<Call>& call) {
  const Lock lock(mutex_);
  drain();
  if (call->done) {
    undo(*call);
  } else if (!std::exchange(call->abandoned, true)) {
    ++abandoned_;
  }
}

bool Calls::has_abandoned() {
  const Lock lock(mutex_);
  drain();
  return abandoned_ != 0 || !to_undo_.empty();
}

void Calls::fail_all(const Error& error) {
  {
    const Lock lock(mutex_);
    drain();  // what was answered is answered
    if (!broken_) break_off(error);
  }
  shm::futex_wake(region_.completion_index->tail);
}

void Calls::drain() {
  if (broken_) return;
  std::array<shm::Completion, 32> batch;
  while (true) {
    const Result<std::size_t> count = completions_.pop(batch);
    if (!count) return break_off(count.error());
    for (std::size_t i = 0; i < *count; ++i) complete(batch[i]);
    if (*count < batch.size() || broken_) break;
  }
  while (!to_undo_.empty() && !broken_) {
    const auto& [operation, handles] = to_undo_.back();
    const std::shared_ptr<Call> call =
        try_submit({.operation = operation, .timeout = std::chrono::seconds(60), .handles = handles});
    if (call == nullptr) return;
    call->abandoned = true;
    ++abandoned_;
    to_undo_.pop_back();
  }
}

void Calls::complete(const shm::Completion& completion) {
  const auto found = under_way_.find(completion.id);
  if (found == under_way_.end()) {
    return break_off({ErrorCode::kInternal,
                      "terraced answered request " + std::to_string(completion.id) + ", which was not made", 0});
  }
  const std::shared_ptr<Call> call = found->second;
  under_way_.erase(found);
  read_answer(*call, completion);
  arena_.give_back(call->block);
  call->done = true;
  if (call->abandoned) {
    --abandoned_;
    undo(*call);
  }
}

void Calls::read_answer(Call& call, const shm::Completion& completion) {
  const std::byte* content = region_.arena.data() + call.block.offset;
  if (completion.code == 0) {
    if (call.operation == shm::Operation::kCreate) {
      std::memcpy(call.handles.data(), content, call.handles.size() * sizeof(std::uint64_t));
    }
    return;
  }
  const auto code = is_known(completion.code) ? static_cast<ErrorCode>(completion.code) : ErrorCode::kInternal;
  const std::size_t bytes = std::min<std::size_t>(completion.message_bytes, call.block.bytes);
  call.error = Error{code, std::string(reinterpret_cast<const char*>(content), bytes), 0};
}

void Calls::undo(Call& call) {
  if (call.error || call.handles.empty()) return;
  if (call.operation == shm::Operation::kAcquire) {
    give_back_(call.handles, call.mode);
  } else if (call.operation == shm::Operation::kCreate) {
    to_undo_.emplace_back(shm::Operation::kDelete, std::move(call.handles));
  } else if (call.operation == shm::Operation::kPin) {
    to_undo_.emplace_back(shm::Operation::kUnpin, std::move(call.handles));
  }
  call.handles.clear();
}

void Calls::break_off(Error error) {
  broken_ = std::move(error);
  for (auto& [id, call] : under_way_) {
    call->error = *broken_;
    call->done = true;
  }
  under_way_.clear();
  abandoned_ = 0;
  to_undo_.clear();
}

}  // namespace terrace::client
