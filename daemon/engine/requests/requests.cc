// SPDX-License-Identifier: Apache-2.0
#include "engine/requests/requests.h"

#include <fmt/format.h>

#include <utility>

#include "engine/values/planted.h"

namespace terrace::engine {

void Requests::answer(RequestId request, Result<ReplyBody> result) {
  const auto waited = waiting_.take(request);
  if (waited && waited->deadline != kNever) deadlines_.erase({waited->deadline, request});
  constexpr std::uint64_t kOneIn = 31;
  const bool unlucky = static_cast<std::uint64_t>(request) % kOneIn == 0;
  if (planted(Plant::kReplyLost) && unlucky) return;
  if (planted(Plant::kReplyTwice) && unlucky) turn_.output.replies.push_back({request, result});
  turn_.output.replies.emplace_back(request, std::move(result));
}

bool Requests::wait_for(RequestId request, SessionId session, Time deadline, bool close) {
  if (waiting_.size() >= options_.requests_waiting_max) {
    answer(request, fail(ErrorCode::kResourceExhausted,
                         fmt::format("{} requests wait already, which is the daemon's bound: try again later",
                                     waiting_.size())));
    return false;
  }
  waiting_.add(request, {session, deadline, close});
  if (deadline != kNever && !planted(Plant::kDeadlineForgotten)) deadlines_.emplace(deadline, request);
  return true;
}

void Requests::check_invariants() const {
  for (const auto& [deadline, request] : deadlines_)
    TERRACE_CHECK(deadline > turn_.now && waiting_.find(request)->deadline == deadline);
}

}  // namespace terrace::engine
