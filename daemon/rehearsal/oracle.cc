// SPDX-License-Identifier: Apache-2.0
#include "rehearsal/oracle.h"

#include <algorithm>

namespace terrace::rehearsal {
namespace {

// The order of an ordered set, told the truth.
class DemandMinPolicy final : public engine::Policy {
 public:
  explicit DemandMinPolicy(const Oracle& oracle) : oracle_(oracle), order_(engine::make_next_use_policy()) {}

  void arrived(Slot slot, Time now) override {
    tell(slot);
    order_->arrived(slot, now);
  }
  void used(Slot slot, Time now) override {
    tell(slot);
    order_->used(slot, now);
  }
  void left(Slot slot) override { order_->left(slot); }
  void offer_victims(const std::function<bool(Slot)>& take) const override { order_->offer_victims(take); }

 private:
  void tell(Slot slot) {
    const std::uint64_t next = oracle_.next_use(index(slot));
    const auto known = static_cast<std::int64_t>(std::min<std::uint64_t>(next, INT64_MAX));
    order_->expect(slot, {.next_ns = known});
  }

  const Oracle& oracle_;
  std::unique_ptr<engine::Policy> order_;
};

}  // namespace

Oracle::Oracle(const workload::Workload& workload) : runs_(workload.runs.size()), uses_(workload.tensors.size()) {
  for (std::uint64_t at = 0; at < runs_; ++at)
    for (const workload::TensorId tensor : workload::leased(workload.runs[at])) uses_[tensor].push_back(at);
}

std::uint64_t Oracle::next_use(std::size_t tensor) const {
  if (tensor >= uses_.size() || uses_[tensor].empty()) return UINT64_MAX;
  const std::uint64_t within = run % runs_;
  const auto next = std::ranges::upper_bound(uses_[tensor], within);
  return run - within + (next == uses_[tensor].end() ? runs_ + uses_[tensor].front() : *next);
}

std::unique_ptr<engine::Policy> make_demand_min_policy(const Oracle& oracle) {
  return std::make_unique<DemandMinPolicy>(oracle);
}

}  // namespace terrace::rehearsal
