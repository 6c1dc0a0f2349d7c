// SPDX-License-Identifier: Apache-2.0
// What sessions do is put down for the learner, and a plan is followed: how far has the session come in it, and what
// does it say of the next use of each copy?
#include <algorithm>
#include <bit>
#include <utility>

#include "engine/engine_impl.h"
#include "foresight/template.h"

namespace terrace::engine {
namespace {

constexpr std::uint32_t kNear = 64;            // uses around the cursor in which an access is looked for
constexpr std::uint32_t kFar = 4096;           // after some in a row that were not found there
constexpr std::uint32_t kLeap = 16;            // uses ahead of the cursor that one access alone is not believed
constexpr std::uint32_t kStraysMin = 8;        // so many
constexpr std::uint32_t kStraysMax = 4096;     // in a row: the plan is of no use
constexpr std::uint32_t kToldMax = 512;        // slots told to the policies at a time
constexpr std::uint32_t kLooksMax = 4096;      // at uses or slots meanwhile
constexpr std::uint32_t kPassMax = 1024;       // uses passed at a time
constexpr std::uint32_t kPassAtOnceMax = 128;  // at an access

}  // namespace

void EngineImpl::observe(const Session& session, Slot slot, shm::Mode mode, Time at, Duration waited) {
  if (!options_.observe || session.is_share() || session.step == 0) return;
  const Tensor& tensor = session.at(slot);
  const std::size_t tier = tier_index(tensor, tensor.published == Level::kNone ? home_level_ : tensor.published);
  output_.observations.push_back({.session = session.id,
                                  .kind = foresight::Observation::Kind::kUsed,
                                  .slot = slot,
                                  .place = tiers_[tier].place,
                                  .mode = mode,
                                  .bytes = tensor.extent_bytes(),
                                  .at = at,
                                  .waited = waited});
}

void EngineImpl::observe_forgotten(const Session& session, Slot slot) {
  if (!options_.observe || session.is_share() || session.step == 0) return;
  output_.observations.push_back(
      {.session = session.id, .kind = foresight::Observation::Kind::kForgotten, .slot = slot, .at = now_});
}

void EngineImpl::observe_step(const Session& session, std::uint32_t kind) {
  if (!options_.observe || session.is_share()) return;
  const auto siblings = std::ranges::count_if(sessions_, [&](const auto& other) {
    return other.second->tenant == session.tenant && !other.second->is_share();
  });
  output_.observations.push_back({.session = session.id,
                                  .kind = foresight::Observation::Kind::kStep,
                                  .step_kind = kind,
                                  .weight = weight_of(options_.weights, session.tenant) / static_cast<double>(siblings),
                                  .at = now_});
}

void EngineImpl::plan(Time now, SessionId id, std::shared_ptr<const foresight::Plan> plan) {
  now_ = now;
  Session* session = find_session(id);
  if (session != nullptr && session->life == Session::Life::kOpen && !session->is_share()) {
    Foreseen& foreseen = session->foreseen;
    const std::uint32_t cursor = foreseen.cursor;
    foreseen.fresh = !foreseen.plan;
    foreseen.plan = plan && !plan->uses.empty() ? std::move(plan) : nullptr;
    foreseen.next_clean = foreseen.next_fetch = 0;
    foreseen.expected = foreseen.cleared = 0;
    foreseen.strays = 0;
    foreseen.leap = kNoLeap;
    foreseen.cleans.clear();
    foreseen.fetches.clear();
    foreseen.told.assign(session->tensors.size(), false);
    foreseen.goes_below.resize(session->tensors.size());
    foreseen.cursor = foreseen.plan ? std::min(cursor, static_cast<std::uint32_t>(foreseen.plan->uses.size())) : 0;
    foreseen.passed = foreseen.cursor;
    foreseen.met.assign(foreseen.plan ? foreseen.plan->uses.size() : 0, false);
    foresight_.plans += foreseen.plan ? 1 : 0;
    stir(*session);
  }
  run();
}

// The next step begins; until its own plan comes, it is taken for one like the last.
void EngineImpl::step_over(Session& session) {
  Foreseen& foreseen = session.foreseen;
  if (!foreseen.plan) return;
  const auto size = static_cast<std::uint32_t>(foreseen.plan->uses.size());
  if (size - foreseen.passed <= kPassMax) {
    while (foreseen.passed < size) pass(session, foreseen.passed++);
  } else {  // most of it did not happen: of all that it speaks of, its next use is told anew
    foreseen.expected = foreseen.cleared = 0;
    foreseen.fresh = false;
    foreseen.told.assign(session.tensors.size(), false);
  }
  foreseen.base_ns += foreseen.plan->period_ns;
  foreseen.cursor = foreseen.passed = 0;
  foreseen.strays = 0;
  foreseen.leap = kNoLeap;
  foreseen.next_clean = foreseen.next_fetch = 0;
  foreseen.met.assign(foreseen.plan->uses.size(), false);
  stir(session);
}

// Its next use is the one after.
void EngineImpl::pass(Session& session, std::uint32_t use) {
  const Foreseen& foreseen = session.foreseen;
  const foresight::PlannedUse& planned = foreseen.plan->uses[use];
  if (index(planned.slot) >= session.tensors.size()) return;
  const std::int64_t next = planned.next_ns == foresight::kBeyond ? kUnforeseen : foreseen.base_ns + planned.next_ns;
  for (std::size_t tier = 0; tier < tiers_.size(); ++tier) {
    if (session.places[tier] == nullptr) continue;
    const bool here = tiers_[tier].place == planned.place;
    // A copy below one that stays, or that is written, is of no use meanwhile.
    const bool stale = !here && tiers_[tier].level != home_level_ && (planned.writes || !planned.give_up);
    const bool goes = here ? planned.give_up : stale || planned.give_up_below;
    session.places[tier]->policy->expect(planned.slot, {next, goes});
  }
  if (index(planned.slot) < session.foreseen.goes_below.size())
    session.foreseen.goes_below[index(planned.slot)] =
        planned.place == shm::kPlaceHost ? planned.give_up : planned.give_up_below;
}

// A device's copy was written down into memory, or is gone and memory has the bytes: what the plan says of the copy
// there holds from now on.
void EngineImpl::pass_below(Session& session, Slot slot) {
  if (!session.at(slot).has(Level::kMemory)) return;
  const Expectation above = place_of(session, session.at(slot), Level::kDevice).policy->expected(slot);
  if (above.next_ns == kUnforeseen) return;
  session.places[memory_tier_]->policy->expect(slot, {above.next_ns, session.foreseen.goes_on(slot)});
}

// The nearest one that was not met yet.
std::optional<std::uint32_t> EngineImpl::find_use(Foreseen& foreseen, Slot slot) const {
  const auto& uses = foreseen.plan->uses;
  const auto size = static_cast<std::uint32_t>(uses.size());
  // The far look comes ever more seldom: what strays for long must not cost more than it did before.
  const bool far = foreseen.strays >= kStraysMin && std::has_single_bit(foreseen.strays);
  const std::uint32_t reach = far ? kFar : kNear;
  const auto is_it = [&](std::uint32_t at) { return at < size && uses[at].slot == slot && !foreseen.met[at]; };
  for (std::uint32_t away = 0; away < reach; ++away) {
    if (is_it(foreseen.cursor + away)) return foreseen.cursor + away;
    if (away < foreseen.cursor && is_it(foreseen.cursor - 1 - away)) return foreseen.cursor - 1 - away;
  }
  if (foreseen.leap == kNoLeap) return std::nullopt;
  for (std::uint32_t at = foreseen.leap + 1; at < foreseen.leap + kLeap; ++at)
    if (is_it(at)) return at;
  return std::nullopt;
}

// A single access far ahead may be one that was never planned, of a tensor that is to be used there. True: the cursor
// stays, until another one says the same.
bool EngineImpl::leaps(Foreseen& foreseen, std::uint32_t use) {
  const auto& uses = foreseen.plan->uses;
  if (use < foreseen.cursor + kLeap || uses[use].at_ns - uses[foreseen.cursor].at_ns < foresight::kOneSetNs)
    return false;
  const bool again = foreseen.leap != kNoLeap && use + kLeap > foreseen.leap && use < foreseen.leap + kLeap;
  foreseen.leap = use;
  return !again;
}

// The session used a tensor: how far has it come?
void EngineImpl::follow(Session& session, Slot slot) {
  Foreseen& foreseen = session.foreseen;
  if (!foreseen.plan) return;
  const auto use = find_use(foreseen, slot);
  if (!use || leaps(foreseen, *use)) {
    ++foreseen.strays;
    ++foreseen.strayed;
    ++foresight_.strayed;
    if (foreseen.strays == kStraysMax) lose_plan(session);
    return;
  }
  ++foreseen.matched;
  ++foresight_.matched;
  foreseen.strays = 0;
  foreseen.leap = kNoLeap;
  foreseen.met[*use] = true;
  foreseen.cursor = std::max(foreseen.cursor, *use + 1);
  pass_some(session, kPassAtOnceMax);
  stir(session);
}

void EngineImpl::pass_some(Session& session, std::uint32_t most) {
  Foreseen& foreseen = session.foreseen;
  for (; foreseen.passed < foreseen.cursor && most > 0; --most) pass(session, foreseen.passed++);
}

// What happens has nothing to do with it: until the next one comes, the session is one without a plan.
void EngineImpl::lose_plan(Session& session) {
  Foreseen& foreseen = session.foreseen;
  foreseen.plan = nullptr;
  foreseen.cursor = foreseen.passed = foreseen.expected = foreseen.cleared = 0;
  foreseen.met.clear();
  foreseen.cleans.clear();
  foreseen.fetches.clear();
  foreseen.told.assign(session.tensors.size(), false);
  stir(session);
}

// The policies learn what the plan says, a little at a time.
void EngineImpl::tell_policies(Session& session) {
  if (session.foreseen.plan) {
    pass_some(session, kPassMax);
    if (!expect_first_uses(session)) return;
  }
  forget_expectations(session);
}

// A client asked for it there, and has not used it since.
bool EngineImpl::is_hinted(const Session& session, Slot slot, std::size_t tier) const {
  const Tensor& tensor = session.at(slot);
  return tensor.hinted && tensor.published == tiers_[tier].level && at_tier(tensor, tier);
}

// A plan that has just come says of every tensor when it is used first. True: it is all told.
bool EngineImpl::expect_first_uses(Session& session) {
  Foreseen& foreseen = session.foreseen;
  const auto& uses = foreseen.plan->uses;
  std::uint32_t told = 0;
  std::uint32_t looks = 0;
  for (; foreseen.expected < uses.size() && told < kToldMax && looks < kLooksMax; ++foreseen.expected, ++looks) {
    const foresight::PlannedUse& use = uses[foreseen.expected];
    if (index(use.slot) >= foreseen.told.size() || foreseen.told[index(use.slot)]) continue;
    if (foreseen.expected < foreseen.cursor) continue;
    foreseen.told[index(use.slot)] = true;
    ++told;
    for (std::size_t tier = 0; tier < tiers_.size(); ++tier) {
      const auto& place = session.places[tier];
      if (place == nullptr) continue;
      if (is_hinted(session, use.slot, tier)) {
        place->policy->expect(use.slot, {foreseen.now_ns(), false});
        continue;
      }
      const bool first_plan = foreseen.fresh && tiers_[tier].place == use.place;
      Expectation known = place->policy->expected(use.slot);
      known.next_ns = foreseen.base_ns + use.at_ns;
      if (first_plan) known.give_up = use.comes_back;
      place->policy->expect(use.slot, known);
    }
  }
  return foreseen.expected == uses.size();
}

// Of slots that the plan does not speak of, nothing is foreseen any more.
void EngineImpl::forget_expectations(Session& session) {
  Foreseen& foreseen = session.foreseen;
  std::uint32_t told = 0;
  std::uint32_t looks = 0;
  for (; foreseen.cleared < foreseen.told.size() && told < kToldMax && looks < kLooksMax; ++foreseen.cleared, ++looks) {
    if (foreseen.told[foreseen.cleared]) continue;
    const Slot slot{foreseen.cleared};
    for (std::size_t tier = 0; tier < tiers_.size(); ++tier) {
      const auto& place = session.places[tier];
      if (place == nullptr || (foreseen.plan && is_hinted(session, slot, tier))) continue;
      const Expectation known = place->policy->expected(slot);
      // What it was told meanwhile still holds.
      if (known.next_ns == kUnforeseen ? !known.give_up : known.next_ns >= foreseen.now_ns() && foreseen.plan) continue;
      place->policy->expect(slot, {});
      ++told;
    }
  }
}

}  // namespace terrace::engine
