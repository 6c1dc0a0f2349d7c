// SPDX-License-Identifier: Apache-2.0
#include "front/training/training.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

namespace terrace::front {
namespace {

constexpr Duration kDrainPeriod = std::chrono::milliseconds(1);
constexpr Duration kDrainPeriodIdle = std::chrono::milliseconds(4);  // a log has 1024 leases: four microseconds each
constexpr Duration kTrainsFor = std::chrono::seconds(60);            // after its last step mark

}  // namespace

void Training::learn(foresight::Machine machine) {
  foreseer_ = std::make_unique<Foreseer>(
      std::move(machine), [this](SessionId session, std::shared_ptr<const foresight::Plan> plan) {
        // A full mailbox loses the plan: the next step brings another.
        static_cast<void>(
            reactor_.post([this, session, plan = std::move(plan)]() mutable { planned(session, std::move(plan)); }));
      });
}

void Training::planned(SessionId session, std::shared_ptr<const foresight::Plan> plan) {
  spdlog::debug("session {}: a plan of {} uses, {} fetches and {} cleans, by version {} of its step's template",
                static_cast<std::uint32_t>(session), plan->uses.size(), plan->fetches.size(), plan->cleans.size(),
                plan->number);
  if (const auto trains = trains_.find(session); trains != trains_.end())
    trains->second.moves = !plan->fetches.empty() || !plan->cleans.empty();
  loop_.engine().plan(loop_.now(), session, std::move(plan));
}

void Training::observed(const std::vector<foresight::Observation>& seen) {
  for (const foresight::Observation& each : seen)
    if (const Session* session = sessions_.find(each.session);
        each.kind == foresight::Observation::Kind::kStep && session != nullptr && session->region)
      trains_[each.session].at = each.at;
  if (foreseer_) foreseer_->observe(seen);
}

void Training::forget(SessionId id) {
  if (foreseer_) foreseer_->forget(id);
}

Duration Training::drain_period() const {
  const bool any_moves = std::ranges::any_of(trains_, [](const auto& each) { return each.second.moves; });
  return any_moves ? kDrainPeriod : kDrainPeriodIdle;
}

Duration Training::until_next_drain(Duration longest) const {
  return trains_.empty() ? longest : std::min(longest, drain_period());
}

void Training::drain() {
  if (trains_.empty() || loop_.now() - last_drain_ < drain_period()) return;
  last_drain_ = loop_.now();
  for (auto at = trains_.begin(); at != trains_.end();) {
    Session* session = sessions_.find(at->first);
    if (session == nullptr || session->state != Session::State::kOpen || loop_.now() - at->second.at > kTrainsFor) {
      at = trains_.erase(at);
      continue;
    }
    sessions_.drain_logs(*session);
    ++at;
  }
}

}  // namespace terrace::front
