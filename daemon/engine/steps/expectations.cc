// SPDX-License-Identifier: Apache-2.0
// What a plan says of the next use of each copy, told to the policies.
#include "engine/steps/steps.h"

#include <algorithm>

#include "foresight/template.h"

namespace terrace::engine {
namespace {

constexpr std::uint32_t kToldMax = 512;    // slots told to the policies at a time
constexpr std::uint32_t kLooksMax = 4096;  // at uses or slots meanwhile

}  // namespace

// The policies learn what the plan says, a little at a time.
void Steps::tell_policies(Course& session) {
  if (session.foreseen.plan) {
    pass_some(session, kPassMax);
    if (!expect_first_uses(session)) return;
  }
  forget_expectations(session);
}

// A client asked for it there, and has not used it since.
bool Steps::is_hinted(const Course& session, Slot slot, TierId tier) const {
  const Tensor& tensor = session.at(slot);
  return tensor.hinted && tensor.published == tiers_[tier].level && tiers_.at_tier(tensor, tier);
}

// A plan that has just come says of every tensor when it is used first. True: it is all told.
bool Steps::expect_first_uses(Course& session) {
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
    for (const TierId tier : tiers_.ids()) {
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
void Steps::forget_expectations(Course& session) {
  Foreseen& foreseen = session.foreseen;
  std::uint32_t told = 0;
  std::uint32_t looks = 0;
  for (; foreseen.cleared < foreseen.told.size() && told < kToldMax && looks < kLooksMax; ++foreseen.cleared, ++looks) {
    if (foreseen.told[foreseen.cleared]) continue;
    const Slot slot{foreseen.cleared};
    for (const TierId tier : tiers_.ids()) {
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

// The plan did not have the copy go. It is brought back as if it had.
void Steps::plan_return(Course& session, Slot slot, Level level) {
  Foreseen& foreseen = session.foreseen;
  if (!foreseen.plan || foreseen.fetches.size() >= kDueMax) return;
  const TierId tier = tiers_.tier_index(session.at(slot), level);
  const Expectation expected = session.places[tier]->policy->expected(slot);
  if (expected.give_up || expected.next_ns == kUnforeseen) return;
  const foresight::PlannedFetch fetch{
      .from = 0, .slot = slot, .place = tiers_[tier].place, .due_ns = expected.next_ns, .returns = true};
  const auto later = std::ranges::upper_bound(foreseen.fetches, fetch.due_ns, {}, &foresight::PlannedFetch::due_ns);
  foreseen.fetches.insert(later, fetch);
}

// The client is going to use it there: no guess is better. Until it does, what a plan says of it does not count.
void Steps::note_hint(Course& session, Slot slot, TierId tier) {
  session.at(slot).hinted = true;
  if (session.foreseen.plan) session.places[tier]->policy->expect(slot, {session.foreseen.now_ns(), false});
}

void Steps::note_lease(Course& session, Slot slot) {
  Tensor& tensor = session.at(slot);
  if (tensor.prefetched) ++counts_.prefetches.used;
  const bool was_hinted = tensor.hinted;
  tensor.prefetched = tensor.hinted = false;
  if (!was_hinted || !session.foreseen.plan || tensor.published == Level::kNone) return;
  Policy& policy = *tiers_.place_of(session, tensor, tensor.published).policy;
  if (policy.expected(slot).next_ns <= session.foreseen.now_ns()) policy.expect(slot, {});  // it was this use
}

}  // namespace terrace::engine
