// SPDX-License-Identifier: Apache-2.0
// Homes are there for good, so that no order of theirs decides anything: what is known of a slot is a bit, and its use
// costs nothing, where a policy would write into its neighbours' entries, which of a million are in no cache.
#include <vector>

#include "base/check.h"
#include "engine/policy/policy.h"

namespace terrace::engine {
namespace {

class HomePolicy final : public Policy {
 public:
  void arrived(Slot slot, Time) override {
    if (index(slot) >= here_.size()) here_.resize(index(slot) + 1);
    TERRACE_CHECK(!here_[index(slot)]);
    here_[index(slot)] = true;
  }

  void used(Slot, Time) override {}

  void left(Slot slot) override {
    TERRACE_CHECK(index(slot) < here_.size() && here_[index(slot)]);
    here_[index(slot)] = false;
  }

  void offer_victims(const std::function<bool(Slot)>& take) const override {
    for (std::uint32_t at = 0; at < here_.size(); ++at)
      if (here_[at] && !take(Slot{at})) return;
  }

 private:
  std::vector<bool> here_;
};

}  // namespace

std::unique_ptr<Policy> make_home_policy() { return std::make_unique<HomePolicy>(); }

}  // namespace terrace::engine
