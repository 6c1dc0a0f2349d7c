// SPDX-License-Identifier: Apache-2.0
// What becomes of requests while the daemon is away, and when one goes on with the session.
#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <string>
#include <utility>

#include "calls.h"

namespace terrace::client {

std::optional<std::uint32_t> Calls::suspend() {
  const Lock lock(mutex_);
  drain();  // what was answered is answered
  if (broken_) return std::nullopt;
  absence_ = {.since = std::chrono::steady_clock::now(), .date = std::chrono::system_clock::now()};
  return completions_.head();
}

void Calls::resume() {
  {
    const Lock lock(mutex_);
    if (broken_ || !absence_) return;
    submissions_ = {*region_.submission_index, region_.submissions};
    completions_ = {*region_.completion_index, region_.completions};
    submissions_.set_polled(false);  // by a daemon that may be older and know no such word
    resubmit();
    absence_.reset();
    drain();  // now there is room for what waits to be undone
  }
  shm::futex_wake(region_.completion_index->tail);
}

void Calls::resubmit() {
  std::vector<std::shared_ptr<Call>> calls;
  calls.reserve(under_way_.size());
  for (const auto& [id, call] : under_way_) calls.push_back(call);
  std::ranges::sort(calls, {}, &Call::id);
  const Deadline now = std::chrono::steady_clock::now();
  for (std::shared_ptr<Call>& call : calls) {
    if (!call->abandoned && now >= (call->submitted ? call->overdue : call->deadline)) call = end_late(call);
    if (call == nullptr || push(*call, call->deadline - now)) continue;
    if (!broken_) {
      break_off({ErrorCode::kInternal, "terraced went on with the session without having emptied its rings", 0});
    }
    return;
  }
  ring();
}

std::shared_ptr<Call> Calls::end_late(const std::shared_ptr<Call>& call) {
  std::shared_ptr<Call> rest;
  if (call->submitted) {
    rest = std::make_shared<Call>(*call);
    give_up(*rest);
    under_way_[call->id] = rest;
  } else {
    forget(*call);
  }
  call->error = away();
  call->done = true;
  return rest;
}

Error Calls::away() const {
  const std::time_t date = std::chrono::system_clock::to_time_t(absence_->date);
  std::tm parts{};
  std::array<char, sizeof "2026-01-01T00:00:00Z"> text{};
  ::gmtime_r(&date, &parts);
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  const auto passed =
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - absence_->since);
  return {ErrorCode::kDeadlineExceeded,
          std::string("terraced is away since ") + text.data() + ", for " + std::to_string(passed.count()) +
              " ms now, and was not back in time for this request: wait longer, or look why it does not come back",
          0};
}

}  // namespace terrace::client
