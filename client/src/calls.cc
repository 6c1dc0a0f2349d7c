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

// Whether an answer to it that nobody waits for is undone, so that it may as well not be asked for.
constexpr bool is_undone(shm::Operation operation) {
  return operation == shm::Operation::kAcquire || operation == shm::Operation::kCreate ||
         operation == shm::Operation::kPin;
}

bool overwrites(const Call& call) {
  return call.operation == shm::Operation::kAcquire &&
         std::ranges::find(call.modes, shm::Mode::kOverwrite) != call.modes.end();
}

// gRPC's UNKNOWN (2) and OUT_OF_RANGE (11) are not among ours.
constexpr bool is_known(std::uint32_t code) { return code >= 1 && code <= 16 && code != 2 && code != 11; }

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
      if (absence_ && !question.waits_for_room) return std::unexpected(no_room());
      if (std::chrono::steady_clock::now() >= deadline) return std::unexpected(absence_ ? away() : no_room());
    }
    sleep(seen, deadline);
  }
}

Error Calls::no_room() const {
  return {ErrorCode::kResourceExhausted,
          "too many requests of this session are under way (" + std::to_string(under_way_.size()) + " of " +
              std::to_string(shm::kRingEntries) + " requests, " +
              std::to_string(region_.arena.size() - arena_.free_bytes()) + " of " +
              std::to_string(region_.arena.size()) + " bytes of arguments): wait for some of them first",
          0};
}

std::shared_ptr<Call> Calls::try_submit(const Question& question) {
  // Never more calls than a ring has entries, so that the daemon can always answer, and the next one be asked again.
  if (under_way_.size() >= shm::kRingEntries) return nullptr;
  const std::size_t modes = question.operation == shm::Operation::kAcquire ? question.handles.size() : 0;
  const std::optional<Arena::Block> block =
      arena_.take(question.handles.size_bytes() + modes * sizeof(shm::Mode) + question.records.size_bytes());
  if (!block) return nullptr;
  auto call = std::make_shared<Call>();
  call->id = ++last_id_;
  call->operation = question.operation;
  call->mode = question.mode;
  call->place = question.place;
  call->value = question.value;
  call->flags = question.flags;
  call->handles.assign(question.handles.begin(), question.handles.end());
  call->modes.assign(question.modes.begin(), question.modes.end());
  call->modes.resize(modes);
  call->records.assign(question.records.begin(), question.records.end());
  call->block = *block;
  call->deadline = deadline_after(question.timeout);
  call->overdue = call->deadline + kGrace;
  if (!absence_) {
    if (!push(*call, question.timeout)) {
      arena_.give_back(*block);
      return nullptr;
    }
    if (!submissions_.is_polled()) ring();
  }
  under_way_.emplace(call->id, call);
  return call;
}

bool Calls::push(Call& call, std::chrono::nanoseconds timeout) {
  const bool names = call.operation == shm::Operation::kCreate || call.operation == shm::Operation::kFind;
  std::byte* const content = region_.arena.data() + call.block.offset;
  if (names) {
    std::memcpy(content, call.records.data(), call.records.size() * sizeof(shm::CreateRecord));
    call.handles.resize(call.records.size());
  } else if (!call.handles.empty()) {
    const std::size_t handles = call.handles.size() * sizeof(std::uint64_t);
    std::memcpy(content, call.handles.data(), handles);
    if (!call.modes.empty()) std::memcpy(content + handles, call.modes.data(), call.modes.size());
  }
  const Result<bool> pushed =
      submissions_.push({.id = call.id,
                         .operation = call.operation,
                         .mode = static_cast<std::uint32_t>(call.mode),
                         .place = call.place,
                         .count = static_cast<std::uint32_t>(call.handles.size()),
                         .block_offset = call.block.offset,
                         .block_bytes = call.block.bytes,
                         .timeout_ns = static_cast<std::uint64_t>(std::max<std::int64_t>(timeout.count(), 0)),
                         .value = call.value,
                         .flags = call.flags | (call.submitted ? shm::kResubmitted : 0)});
  if (!pushed) break_off(pushed.error());
  if (!pushed || !*pushed) return false;
  call.submitted = true;
  return true;
}

bool Calls::ready(const std::shared_ptr<Call>& call) {
  const Lock lock(mutex_);
  drain();
  const bool waits_for_daemon = absence_ && !call->done && !call->submitted;
  if (waits_for_daemon && std::chrono::steady_clock::now() >= call->deadline) end_late(call);
  return call->done;
}

void Calls::ring() const {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(doorbell_, &one, sizeof one);
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
  } else if (!call->submitted && is_undone(call->operation)) {
    forget(*call);
  } else if (!call->abandoned) {
    give_up(*call);
  }
}

void Calls::give_up(Call& call) {
  call.abandoned = true;
  ++abandoned_;
  if (overwrites(call)) ++overwrites_given_up_;
}

void Calls::end_given_up(const Call& call) {
  --abandoned_;
  if (overwrites(call)) --overwrites_given_up_;
}

bool Calls::settled(std::span<const std::uint64_t> handles, Deadline deadline) {
  const auto names_one = [&](const auto& under_way) {
    const Call& call = *under_way.second;
    return call.abandoned && overwrites(call) &&
           std::ranges::find_first_of(call.handles, handles) != call.handles.end();
  };
  while (true) {
    const std::uint32_t seen = region_.completion_index->tail.load(std::memory_order_seq_cst);
    {
      const Lock lock(mutex_);
      drain();
      if (std::ranges::none_of(under_way_, names_one)) return true;
    }
    if (waits_ended() || std::chrono::steady_clock::now() >= deadline) return false;
    sleep(seen, deadline);
  }
}

void Calls::destroy(std::vector<std::uint64_t> handles) {
  const Lock lock(mutex_);
  if (broken_) return;
  to_undo_.emplace_back(shm::Operation::kDelete, std::move(handles));
  drain();
}

Error Calls::overdue() const {
  const Lock lock(mutex_);
  if (absence_) return away();
  return {ErrorCode::kDeadlineExceeded, "terraced has not answered in time: is it stopped, or overloaded?", 0};
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
  if (broken_ || absence_) return;
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
    give_up(*call);
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
  read_answer(*call, completion);
  const auto is_beyond = [&](std::uint64_t handle) {
    return static_cast<std::uint32_t>(handle) >= region_.table.size();
  };
  const bool names = call->operation == shm::Operation::kCreate || call->operation == shm::Operation::kFind;
  if (names && !call->error && std::ranges::any_of(call->handles, is_beyond))
    return break_off({ErrorCode::kInternal, "terraced put a tensor beyond the end of the session's table", 0});
  forget(*call);
  if (call->abandoned) {
    undo(*call);
    end_given_up(*call);
  }
}

void Calls::forget(Call& call) {
  under_way_.erase(call.id);
  arena_.give_back(call.block);
  call.done = true;
}

void Calls::read_answer(Call& call, const shm::Completion& completion) {
  const std::byte* content = region_.arena.data() + call.block.offset;
  if (completion.code == 0) {
    if (call.operation == shm::Operation::kCreate) {
      std::memcpy(call.handles.data(), content, call.handles.size() * sizeof(std::uint64_t));
    } else if (call.operation == shm::Operation::kFind) {
      const std::size_t records = call.records.size() * sizeof(shm::CreateRecord);
      std::memcpy(call.records.data(), content, records);
      std::memcpy(call.handles.data(), content + records, call.handles.size() * sizeof(std::uint64_t));
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
    for (std::size_t i = 0; i < call.handles.size(); ++i) give_back_(call.handles[i], call.modes[i]);
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
  overwrites_given_up_ = 0;
  to_undo_.clear();
  absence_.reset();
}

}  // namespace terrace::client
