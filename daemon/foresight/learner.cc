// SPDX-License-Identifier: Apache-2.0
#include "foresight/learner.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace terrace::foresight {
namespace {

constexpr std::uint32_t kNever = UINT32_MAX;
constexpr std::size_t kLongUses = 200'000;  // of a step: then the horizon is shorter
constexpr std::size_t kHorizonMax = 64;     // steps, either way
constexpr std::size_t kBefore = 2;          // steps, at least
constexpr std::uint32_t kSlotsMax = 1u << 24;

// Shares of the uses of two steps: from here on they do the same, and below they do not.
constexpr double kAlike = 0.8;
constexpr double kUnlike = 0.6;

}  // namespace

std::optional<Plan> Learner::observe(const Observation& seen) {
  if (seen.kind == Observation::Kind::kStep) return step(seen);
  if (static_cast<std::uint32_t>(seen.slot) >= kSlotsMax) return std::nullopt;
  if (seen.kind == Observation::Kind::kDeclared) {
    declared(seen);
  } else if (!began_) {
    return std::nullopt;
  } else if (seen.kind == Observation::Kind::kUsed) {
    used(seen);
  } else if (index(seen.slot) < last_use_.size() && last_use_[index(seen.slot)] != kNever) {
    uses_[last_use_[index(seen.slot)]].dies = true;
  }
  return std::nullopt;
}

void Learner::missed() {
  began_ = false;
  uses_ = {};
  last_use_ = {};
  declared_.clear();
}

void Learner::share(double weights, std::vector<double> by_device) {
  weights_ = weights;
  by_device_ = std::move(by_device);
}

std::size_t Learner::known_uses() const {
  std::size_t sum = uses_.size();
  for (const auto& [context, known] : templates_) sum += known.uses.size();
  for (const auto& [kind, declaration] : declared_) sum += declaration.uses.size();
  for (const auto& [kinds, turns] : turns_) sum += turns.latest.size() * (sizeof(Sketch) / sizeof(TemplateUse));
  return sum;
}

void Learner::forget() {
  templates_.clear();
  latest_.clear();
  turns_.clear();
  missed();
}

void Learner::used(const Observation& seen) {
  if (!uses_place(seen.place)) places_.push_back(seen.place);
  // Leases that are waited for at once are one wait.
  const Duration before = std::max(Duration::zero(), waited_until_ - (seen.at + -seen.waited));
  if (seen.waited > before) waited_ += seen.waited - before;
  if (seen.waited > Duration::zero()) waited_until_ = std::max(waited_until_, seen.at);
  if (uses_.size() >= kUsesMax) return missed();
  if (index(seen.slot) >= last_use_.size()) last_use_.resize(index(seen.slot) + 1, kNever);
  last_use_[index(seen.slot)] = static_cast<std::uint32_t>(uses_.size());
  std::int64_t at = (seen.at - step_began_ - waited_).count();
  if (!uses_.empty()) at = std::max(at, uses_.back().at_ns);
  uses_.push_back({.slot = seen.slot,
                   .place = seen.place,
                   .mode = seen.mode,
                   .bytes = seen.bytes,
                   .at_ns = std::max<std::int64_t>(at, 0)});
}

void Learner::declared(const Observation& seen) {
  Declaration& declaration = declared_[seen.step_kind];
  if (seen.first) declaration = {};
  if (declaration.uses.size() >= kUsesMax) return;
  if (!uses_place(seen.place)) places_.push_back(seen.place);
  const std::int64_t at_ns = std::max<std::int64_t>((seen.at - Time{}).count(), 0);
  declaration.uses.push_back(
      {.slot = seen.slot, .place = seen.place, .mode = seen.mode, .bytes = seen.bytes, .at_ns = at_ns});
  declaration.period_ns = std::max(declaration.period_ns, at_ns + std::max<std::int64_t>(seen.waited.count(), 1));
}

// What was declared of the kind, which has begun, is taken for a step that was seen, and replaces those that were.
void Learner::believe(std::uint32_t kind) {
  const auto found = declared_.find(kind);
  if (found == declared_.end()) return;
  put_sets_in_order(found->second.uses);
  const Template* const before = template_of(history_, history_.size() - 1);
  const std::uint64_t version = before == nullptr ? 0 : before->version;
  std::erase_if(templates_, [kind](const auto& each) { return each.first.first.kind == kind; });
  const Context context = context_of(history_, history_.size() - 1);
  latest_[context.first] = context;
  Template& known = templates_[context];
  known.version = version;
  known.learn(std::move(found->second.uses), found->second.period_ns);
  declared_.erase(found);
}

// How many turns its steps take, if not as many as were known: twice in a row a step did what the one so many before
// did, and not what the one before did. One: they do not even do that any more.
std::optional<std::size_t> Learner::Turns::changed() const {
  const auto likeness = [&](std::size_t step, std::size_t before) {
    return step + before < latest.size() ? latest[step].likeness(latest[step + before]) : 0;
  };
  if (count > 1) return likeness(0, count) < kUnlike ? std::optional<std::size_t>(1) : std::nullopt;
  if (latest.size() < 2 || likeness(0, 1) >= kUnlike) return std::nullopt;
  for (std::size_t turns = 2; turns <= kTurnsMax; ++turns)
    if (likeness(0, turns) >= kAlike && likeness(1, turns) >= kAlike) return turns;
  return std::nullopt;
}

// Of the step that is over, whose uses are known. Where there are other turns, what was learned was of several mixed
// up.
void Learner::take_turns() {
  const auto kinds_of = [](const Context& context) { return std::pair(context.first.kind, context.second.kind); };
  const auto kinds = kinds_of(context_of(history_, history_.size() - 1));
  Turns& turns = turns_[kinds];
  turns.latest.emplace_front();
  for (const TemplateUse& use : uses_) turns.latest.front().add(use);
  if (turns.latest.size() > kTurnsMax + 2) turns.latest.pop_back();
  const auto changed = turns.changed();
  if (!changed) return;
  turns.count = *changed;
  turns.next = 0;
  std::erase_if(templates_, [&](const auto& each) { return kinds_of(each.first) == kinds; });
  std::erase_if(latest_, [&](const auto& each) { return kinds_of(each.second) == kinds; });
  auto turn = static_cast<std::uint32_t>(turns.count);
  for (std::size_t at = history_.size(); at-- > 0;) {
    if (kinds_of(context_of(history_, at)) != kinds) continue;
    turn = (turn == 0 ? static_cast<std::uint32_t>(turns.count) : turn) - 1;
    history_[at].turn = turn;
  }
}

// Before the first step there was none: it is taken for one of several.
Learner::Context Learner::context_of(const std::vector<Sort>& sorts, std::size_t at) {
  return {sorts[at], sorts[at == 0 ? 0 : at - 1]};
}

// What came after the longest of the latest runs of what came before.
Learner::Sort Learner::sort_after(const std::vector<Sort>& sorts) {
  std::size_t longest = 0;
  Sort sort = sorts.back();
  for (std::size_t at = sorts.size() - 1; at-- > 0;) {
    std::size_t length = 0;
    while (length <= at && sorts[at - length] == sorts[sorts.size() - 1 - length]) ++length;
    if (length > longest) {
      longest = length;
      sort = sorts[at + 1];
    }
  }
  return sort;
}

// What of a set was there and what was waited for differs from step to step, and so does the order in which it is seen.
void Learner::put_sets_in_order(std::vector<TemplateUse>& uses) {
  for (auto first = uses.begin(); first != uses.end();) {
    auto last = first;
    while (last != uses.end() && last->at_ns - first->at_ns < kOneSetNs) ++last;
    const std::int64_t at = first->at_ns;
    std::ranges::sort(first, last, {},
                      [](const TemplateUse& use) { return std::tie(use.slot, use.at_ns, use.place, use.mode); });
    for (; first != last; ++first) first->at_ns = at;
  }
}

// What is known of a step: from such a step after such a one, else from one of its sort. None: nothing.
const Template* Learner::template_of(const std::vector<Sort>& sorts, std::size_t at) const {
  auto found = templates_.find(context_of(sorts, at));
  if (found == templates_.end()) {
    const auto latest = latest_.find(sorts[at]);
    if (latest == latest_.end()) return nullptr;
    found = templates_.find(latest->second);
  }
  return found->second.uses.empty() ? nullptr : &found->second;
}

// Of the step that is over. The first of its context goes on from what is known of its sort.
Template& Learner::template_to_learn() {
  const Context context = context_of(history_, history_.size() - 1);
  const auto latest = latest_.find(context.first);
  if (latest != latest_.end()) templates_.try_emplace(context, templates_.at(latest->second));
  latest_[context.first] = context;
  return templates_[context];
}

// Had fetches begun earlier by what was waited for and not foreseen, nobody would have waited.
void Learner::adapt_lead() {
  if (!foreseen_wait_) return;
  lead_ = std::clamp(waited_ - *foreseen_wait_, lead_ / 2, kLeadMax);
}

std::optional<Plan> Learner::step(const Observation& seen) {
  if (began_) {
    adapt_lead();
    put_sets_in_order(uses_);
    take_turns();
    const std::int64_t period = (seen.at - step_began_ - waited_).count();
    Template& known = template_to_learn();
    confidence_.match = known.last_match = known.learn(std::move(uses_), std::max<std::int64_t>(period, 1));
    confidence_.kind = history_.back().kind;
    confidence_.number = known.version;
    ++confidence_.steps;
  }
  foreseen_wait_.reset();
  uses_.clear();
  last_use_.clear();
  began_ = true;
  weight_ = seen.weight;
  step_began_ = waited_until_ = seen.at;
  waited_ = Duration::zero();
  Turns& turns = turns_[{seen.step_kind, history_.empty() ? seen.step_kind : history_.back().kind}];
  history_.push_back({seen.step_kind, turns.next});
  turns.next = (turns.next + 1) % static_cast<std::uint32_t>(turns.count);
  if (history_.size() > kHistoryMax) history_.erase(history_.begin());
  believe(seen.step_kind);
  const Template* known = template_of(history_, history_.size() - 1);
  if (known == nullptr) return std::nullopt;
  std::size_t window = 0;
  const std::vector<const Template*> horizon = horizon_of(*known, window);
  Plan made = plan(part(), horizon, window);
  made.kind = seen.step_kind;
  made.match = known->last_match;
  foreseen_wait_ = Duration(made.period_ns - known->period_ns);
  return made;
}

// Of a horizon, before the step that is planned: some, so that it begins in the middle of things; from the last such
// step on, if that is not too far, so that what it uses first is known to have gone.
std::size_t Learner::steps_before() const {
  const std::size_t last = history_.size() - 1;
  std::size_t uses = 0;
  for (std::size_t back = 1; back <= std::min(last, kHorizonMax) && uses < kLongUses; ++back) {
    if (context_of(history_, last - back) == context_of(history_, last)) return std::max(back, kBefore);
    const Template* const between = template_of(history_, last - back);
    uses += between == nullptr ? 0 : between->uses.size();
  }
  return kBefore;
}

// Some steps before, and what comes after.
std::vector<const Template*> Learner::horizon_of(const Template& known, std::size_t& window) const {
  const auto or_known = [&](const Template* other) { return other == nullptr ? &known : other; };
  std::vector<const Template*> horizon;
  for (std::size_t back = known.uses.size() > kLongUses ? 1 : steps_before(); back > 0; --back)
    horizon.push_back(back < history_.size() ? or_known(template_of(history_, history_.size() - 1 - back)) : &known);
  window = horizon.size();
  horizon.push_back(&known);
  std::vector<Sort> sorts = history_;
  std::size_t uses = known.uses.size();
  do {  // until such a step comes again, if that is not too far
    sorts.push_back(sort_after(sorts));
    horizon.push_back(or_known(template_of(sorts, sorts.size() - 1)));
    uses += horizon.back()->uses.size();
  } while (context_of(sorts, sorts.size() - 1) != context_of(history_, history_.size() - 1) && uses < kLongUses &&
           horizon.size() - window <= kHorizonMax);
  return horizon;
}

Machine Learner::part() const {
  Machine part = machine_;
  const auto divide = [this](PlannedTier& tier, double weights) {
    const double mine = std::min(weight_ / weights, 1.0);
    tier.capacity_bytes = static_cast<std::uint64_t>(static_cast<double>(tier.capacity_bytes) * mine);
    tier.left_bytes = static_cast<std::uint64_t>(static_cast<double>(tier.left_bytes) * mine);
    tier.in.bytes_per_s *= mine;
    tier.out.bytes_per_s *= mine;
  };
  for (std::size_t at = 0; at < part.devices.size(); ++at)
    divide(part.devices[at], at < by_device_.size() ? std::max(by_device_[at], weight_) : weights_);
  if (part.has_memory) divide(part.memory, weights_);
  part.lead_ns = std::max(part.lead_ns, lead_.count());
  return part;
}

void share(const Machine& machine, std::span<Learner* const> learners) {
  const auto weights_of = [&](const auto& uses) {
    double sum = 0;
    for (const Learner* learner : learners) sum += uses(*learner) ? learner->weight() : 0;
    return sum;
  };
  std::vector<double> by_device;
  for (const PlannedTier& device : machine.devices)
    by_device.push_back(weights_of([&](const Learner& learner) { return learner.uses_place(device.place); }));
  const double all = weights_of([](const Learner&) { return true; });
  for (Learner* learner : learners) learner->share(all, by_device);
}

}  // namespace terrace::foresight
