// SPDX-License-Identifier: Apache-2.0
// A plan is followed: how far has the session come in it?
#include "engine/steps/steps.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "foresight/template.h"

namespace terrace::engine {
namespace {

constexpr std::uint32_t kNear = 64;            // uses around the cursor in which an access is looked for
constexpr std::uint32_t kFar = 4096;           // after some in a row that were not found there
constexpr std::uint32_t kLeap = 16;            // uses ahead of the cursor that one access alone is not believed
constexpr std::uint32_t kStraysMin = 8;        // so many
constexpr std::uint32_t kStraysMax = 4096;     // in a row: the plan is of no use
constexpr std::uint32_t kPassAtOnceMax = 128;  // at an access

}  // namespace

void Steps::take_plan(Course& session, std::shared_ptr<const foresight::Plan> plan) {
  Foreseen& foreseen = session.foreseen;
  const std::uint32_t cursor = foreseen.cursor;
  foreseen.fresh = !foreseen.plan;
  foreseen.plan = plan && !plan->uses.empty() ? std::move(plan) : nullptr;
  foreseen.next_clean = foreseen.next_fetch = 0;
  foreseen.expected = foreseen.cleared = 0;
  foreseen.strays = 0;
  foreseen.leap = kNoLeap;
  foreseen.cleans.clear();
  foreseen.fetches.clear();
  foreseen.told.assign(session.tensors.size(), false);
  foreseen.goes_below.resize(session.tensors.size());
  foreseen.cursor = foreseen.plan ? std::min(cursor, static_cast<std::uint32_t>(foreseen.plan->uses.size())) : 0;
  foreseen.passed = foreseen.cursor;
  foreseen.met.assign(foreseen.plan ? foreseen.plan->uses.size() : 0, false);
  counts_.foresight.plans += foreseen.plan ? 1 : 0;
  wakes_.stir(session);
}

// The next step begins; until its own plan comes, it is taken for one like the last.
void Steps::step_over(Course& session) {
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
  wakes_.stir(session);
}

// Its next use is the one after.
void Steps::pass(Course& session, std::uint32_t use) {
  const Foreseen& foreseen = session.foreseen;
  const foresight::PlannedUse& planned = foreseen.plan->uses[use];
  if (index(planned.slot) >= session.tensors.size()) return;
  const std::int64_t next = planned.next_ns == foresight::kBeyond ? kUnforeseen : foreseen.base_ns + planned.next_ns;
  for (const TierId tier : tiers_.ids()) {
    if (session.places[tier] == nullptr) continue;
    const bool here = tiers_[tier].place == planned.place;
    // A copy below one that stays, or that is written, is of no use meanwhile.
    const bool stale = !here && tiers_[tier].level != tiers_.home_level && (planned.writes || !planned.give_up);
    const bool goes = here ? planned.give_up : stale || planned.give_up_below;
    session.places[tier]->policy->expect(planned.slot, {next, goes});
  }
  if (index(planned.slot) < session.foreseen.goes_below.size())
    session.foreseen.goes_below[index(planned.slot)] =
        planned.place == shm::kPlaceHost ? planned.give_up : planned.give_up_below;
}

// A device's copy was written down into memory, or is gone and memory has the bytes: what the plan says of the copy
// there holds from now on.
void Steps::pass_below(Course& session, Slot slot) {
  if (!session.at(slot).has(Level::kMemory)) return;
  const Expectation above = tiers_.place_of(session, session.at(slot), Level::kDevice).policy->expected(slot);
  if (above.next_ns == kUnforeseen) return;
  session.places[tiers_.memory]->policy->expect(slot, {above.next_ns, session.foreseen.goes_on(slot)});
}

// The nearest one that was not met yet.
std::optional<std::uint32_t> Steps::find_use(Foreseen& foreseen, Slot slot) const {
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
bool Steps::leaps(Foreseen& foreseen, std::uint32_t use) {
  const auto& uses = foreseen.plan->uses;
  if (use < foreseen.cursor + kLeap || uses[use].at_ns - uses[foreseen.cursor].at_ns < foresight::kOneSetNs)
    return false;
  const bool again = foreseen.leap != kNoLeap && use + kLeap > foreseen.leap && use < foreseen.leap + kLeap;
  foreseen.leap = use;
  return !again;
}

// The session used a tensor: how far has it come?
void Steps::follow(Course& session, Slot slot) {
  Foreseen& foreseen = session.foreseen;
  if (!foreseen.plan) return;
  const auto use = find_use(foreseen, slot);
  if (!use || leaps(foreseen, *use)) {
    ++foreseen.strays;
    ++foreseen.strayed;
    ++counts_.foresight.strayed;
    if (foreseen.strays == kStraysMax) lose_plan(session);
    return;
  }
  ++foreseen.matched;
  ++counts_.foresight.matched;
  foreseen.strays = 0;
  foreseen.leap = kNoLeap;
  foreseen.met[*use] = true;
  foreseen.cursor = std::max(foreseen.cursor, *use + 1);
  pass_some(session, kPassAtOnceMax);
  wakes_.stir(session);
}

void Steps::pass_some(Course& session, std::uint32_t most) {
  Foreseen& foreseen = session.foreseen;
  for (; foreseen.passed < foreseen.cursor && most > 0; --most) pass(session, foreseen.passed++);
}

// What happens has nothing to do with it: until the next one comes, the session is one without a plan.
void Steps::lose_plan(Course& session) {
  Foreseen& foreseen = session.foreseen;
  foreseen.plan = nullptr;
  foreseen.cursor = foreseen.passed = foreseen.expected = foreseen.cleared = 0;
  foreseen.met.clear();
  foreseen.cleans.clear();
  foreseen.fetches.clear();
  foreseen.told.assign(session.tensors.size(), false);
  wakes_.stir(session);
}

}  // namespace terrace::engine
