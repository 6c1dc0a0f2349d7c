// SPDX-License-Identifier: Apache-2.0
// What the engine saw goes to the learners, and their plans to the engine. While a session trains, its access logs are
// looked into often: a lease that is taken in shared memory wakes nobody, and a plan is followed by what is leased.
// Where it moves nothing, often enough to lose none.
#include <spdlog/spdlog.h>

#include <algorithm>

#include "front/host.h"

namespace terrace::front {
namespace {

constexpr Duration kDrainPeriod = std::chrono::milliseconds(1);
constexpr Duration kDrainPeriodIdle = std::chrono::milliseconds(4);  // a log has 1024 leases: four microseconds each
constexpr Duration kTrainsFor = std::chrono::seconds(60);            // after its last step mark

}  // namespace

void Host::make_foreseer() {
  if (!node_.options.observe) return;
  foreseer_ = std::make_unique<Foreseer>(
      machine_of(node_.options, config_.links), [this](SessionId session, std::shared_ptr<const foresight::Plan> plan) {
        // A full mailbox loses the plan: the next step brings another.
        static_cast<void>(reactor_->post([this, session, plan = std::move(plan)]() mutable {
          spdlog::debug("session {}: a plan of {} uses, {} fetches and {} cleans, by version {} of its step's template",
                        static_cast<std::uint32_t>(session), plan->uses.size(), plan->fetches.size(),
                        plan->cleans.size(), plan->number);
          if (const auto trains = trains_.find(session); trains != trains_.end())
            trains->second.moves = !plan->fetches.empty() || !plan->cleans.empty();
          loop_->engine().plan(now(), session, std::move(plan));
        }));
      });
}

void Host::pass_on(const std::vector<foresight::Observation>& seen) {
  for (const foresight::Observation& each : seen)
    if (const Session* session = find(each.session);
        each.kind == foresight::Observation::Kind::kStep && session != nullptr && session->region)
      trains_[each.session].at = each.at;
  if (foreseer_) foreseer_->observe(seen);
}

Duration Host::drain_period() const {
  const bool any_moves = std::ranges::any_of(trains_, [](const auto& each) { return each.second.moves; });
  return any_moves ? kDrainPeriod : kDrainPeriodIdle;
}

Duration Host::until_next_drain(Duration longest) const {
  return trains_.empty() ? longest : std::min(longest, drain_period());
}

void Host::drain_trainers() {
  if (trains_.empty() || now() - last_drain_ < drain_period()) return;
  last_drain_ = now();
  for (auto at = trains_.begin(); at != trains_.end();) {
    Session* session = find(at->first);
    if (session == nullptr || session->state != Session::State::kOpen || now() - at->second.at > kTrainsFor) {
      at = trains_.erase(at);
      continue;
    }
    drain_logs(*session);
    ++at;
  }
}

}  // namespace terrace::front
