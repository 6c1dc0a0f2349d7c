// SPDX-License-Identifier: Apache-2.0
#include "foresight/learner.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace terrace::foresight {
namespace {

constexpr std::uint32_t kNone = UINT32_MAX;
constexpr std::size_t kLongUses = 200'000;  // of a step: then the horizon is shorter
constexpr std::size_t kHorizonMax = 16;     // steps
constexpr std::uint32_t kSlotsMax = 1u << 24;

}  // namespace

std::optional<Plan> Learner::observe(const Observation& seen) {
  if (seen.kind == Observation::Kind::kStep) return step(seen);
  if (!began_ || static_cast<std::uint32_t>(seen.slot) >= kSlotsMax) return std::nullopt;
  if (seen.kind == Observation::Kind::kUsed) {
    used(seen);
  } else if (index(seen.slot) < last_use_.size() && last_use_[index(seen.slot)] != kNone) {
    uses_[last_use_[index(seen.slot)]].dies = true;
  }
  return std::nullopt;
}

void Learner::missed() {
  began_ = false;
  uses_ = {};
  last_use_ = {};
}

void Learner::share(std::size_t sessions, std::vector<std::size_t> by_device) {
  sessions_ = std::max<std::size_t>(sessions, 1);
  by_device_ = std::move(by_device);
}

std::size_t Learner::known_uses() const {
  std::size_t sum = uses_.size();
  for (const auto& [kind, known] : templates_) sum += known.uses.size();
  return sum;
}

void Learner::forget() {
  templates_.clear();
  missed();
}

void Learner::used(const Observation& seen) {
  if (!uses_place(seen.place)) places_.push_back(seen.place);
  // Leases that are waited for at once are one wait.
  const Duration before = std::max(Duration::zero(), waited_until_ - (seen.at + -seen.waited));
  if (seen.waited > before) waited_ += seen.waited - before;
  if (seen.waited > Duration::zero()) waited_until_ = std::max(waited_until_, seen.at);
  if (uses_.size() >= kUsesMax) return missed();
  if (index(seen.slot) >= last_use_.size()) last_use_.resize(index(seen.slot) + 1, kNone);
  last_use_[index(seen.slot)] = static_cast<std::uint32_t>(uses_.size());
  std::int64_t at = (seen.at - step_began_ - waited_).count();
  if (!uses_.empty()) at = std::max(at, uses_.back().at_ns);
  uses_.push_back({.slot = seen.slot,
                   .place = seen.place,
                   .mode = seen.mode,
                   .bytes = seen.bytes,
                   .at_ns = std::max<std::int64_t>(at, 0)});
}

// The kind that came after the longest of the latest runs of kinds that came before.
std::uint32_t Learner::kind_after(const std::vector<std::uint32_t>& kinds) const {
  std::size_t longest = 0;
  std::uint32_t kind = kinds.back();
  for (std::size_t at = kinds.size() - 1; at-- > 0;) {
    std::size_t length = 0;
    while (length <= at && kinds[at - length] == kinds[kinds.size() - 1 - length]) ++length;
    if (length > longest) {
      longest = length;
      kind = kinds[at + 1];
    }
  }
  return kind;
}

// What of a set was there and what was waited for differs from step to step, and so does the order in which it is seen.
void Learner::put_sets_in_order() {
  for (auto first = uses_.begin(); first != uses_.end();) {
    auto last = first;
    while (last != uses_.end() && last->at_ns - first->at_ns < kOneSetNs) ++last;
    const std::int64_t at = first->at_ns;
    std::ranges::sort(first, last, {},
                      [](const TemplateUse& use) { return std::tie(use.slot, use.at_ns, use.place, use.mode); });
    for (; first != last; ++first) first->at_ns = at;
  }
}

std::optional<Plan> Learner::step(const Observation& seen) {
  if (began_) {
    put_sets_in_order();
    const std::int64_t period = (seen.at - step_began_ - waited_).count();
    const std::uint32_t kind = history_.back();
    confidence_.match = templates_[kind].learn(std::move(uses_), std::max<std::int64_t>(period, 1));
    confidence_.kind = kind;
    confidence_.number = templates_[kind].version;
    ++confidence_.steps;
  }
  uses_.clear();
  last_use_.clear();
  began_ = true;
  step_began_ = waited_until_ = seen.at;
  waited_ = Duration::zero();
  history_.push_back(seen.step_kind);
  if (history_.size() > kHistoryMax) history_.erase(history_.begin());
  const auto found = templates_.find(seen.step_kind);
  if (found == templates_.end() || found->second.uses.empty()) return std::nullopt;
  // Some steps before, so that what is planned begins in the middle of things, and what comes after.
  const std::size_t around = found->second.uses.size() > kLongUses ? 1 : 2;
  std::vector<const Template*> horizon;
  for (std::size_t back = around; back > 0; --back) {
    const std::uint32_t kind = back < history_.size() ? history_[history_.size() - 1 - back] : seen.step_kind;
    const auto before = templates_.find(kind);
    horizon.push_back(before == templates_.end() ? &found->second : &before->second);
  }
  const std::size_t window = horizon.size();
  horizon.push_back(&found->second);
  std::vector<std::uint32_t> kinds = history_;
  std::size_t uses = found->second.uses.size();
  do {  // until a step of this kind comes again, if that is not too far
    kinds.push_back(kind_after(kinds));
    const auto after = templates_.find(kinds.back());
    horizon.push_back(after == templates_.end() ? &found->second : &after->second);
    uses += horizon.back()->uses.size();
  } while (kinds.back() != seen.step_kind && uses < kLongUses && horizon.size() < kHorizonMax);
  return plan(part(), horizon, window);
}

Machine Learner::part() const {
  Machine part = machine_;
  const auto divide = [](PlannedTier& tier, std::size_t sessions) {
    tier.capacity_bytes /= sessions;
    tier.in.bytes_per_s /= static_cast<double>(sessions);
    tier.out.bytes_per_s /= static_cast<double>(sessions);
  };
  for (std::size_t at = 0; at < part.devices.size(); ++at)
    divide(part.devices[at], at < by_device_.size() ? std::max<std::size_t>(by_device_[at], 1) : sessions_);
  if (part.has_memory) divide(part.memory, sessions_);
  return part;
}

void share(const Machine& machine, std::span<Learner* const> learners) {
  std::vector<std::size_t> by_device;
  for (const PlannedTier& device : machine.devices)
    by_device.push_back(static_cast<std::size_t>(
        std::ranges::count_if(learners, [&](const Learner* learner) { return learner->uses_place(device.place); })));
  for (Learner* learner : learners) learner->share(learners.size(), by_device);
}

}  // namespace terrace::foresight
