// SPDX-License-Identifier: Apache-2.0
// The order of a plan, as an ordered set. What the plan does not speak of has the order of a policy of its own, in
// constant time.
#include <algorithm>
#include <memory>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "base/check.h"
#include "engine/policy.h"

namespace terrace::engine {
namespace {

class NextUsePolicy final : public Policy {
 public:
  void arrived(Slot slot, Time now) override {
    if (!planned()) return unforeseen_->arrived(slot, now);
    Entry& entry = at(slot);
    TERRACE_CHECK(!entry.here);
    entry.here = true;
    entry.used = ++uses_;
    enter(slot, entry, now);
  }

  void used(Slot slot, Time now) override {
    if (!planned()) return unforeseen_->used(slot, now);
    if (index(slot) >= entries_.size() || !entries_[index(slot)].here) return;
    Entry& entry = entries_[index(slot)];
    if (!known(entry)) return unforeseen_->used(slot, now);
    auto node = order_.extract(key(slot, entry));
    entry.used = ++uses_;
    node.value() = key(slot, entry);
    order_.insert(std::move(node));
  }

  void left(Slot slot) override {
    if (!planned()) return unforeseen_->left(slot);
    TERRACE_CHECK(index(slot) < entries_.size() && entries_[index(slot)].here);
    leave(slot, entries_[index(slot)]);
    entries_[index(slot)].here = false;
  }

  void expect(Slot slot, Expectation what) override {
    if (index(slot) >= entries_.size() && what == Expectation{}) return;
    if (!planned()) begin_plans();
    Entry& entry = at(slot);
    if (entry.expected == what) return;
    if (entry.here) leave(slot, entry);
    entry.expected = what;
    if (entry.here) enter(slot, entry, Time{});
  }

  Expectation expected(Slot slot) const override {
    return index(slot) < entries_.size() ? entries_[index(slot)].expected : Expectation{};
  }

  void offer_victims(const std::function<bool(Slot)>& take) const override {
    if (!planned()) return unforeseen_->offer_victims(take);
    bool more = true;
    auto next = order_.begin();
    for (; more && next != order_.end() && !std::get<0>(*next);) {
      const Slot slot = std::get<Slot>(*next++);  // `take` may make it leave
      more = take(slot);
    }
    if (more)
      unforeseen_->offer_victims([&](Slot slot) {
        more = take(slot);
        return more;
      });
    while (more && next != order_.end()) {
      const Slot slot = std::get<Slot>(*next++);
      more = take(slot);
    }
  }

 private:
  struct Entry {
    Expectation expected;
    std::uint64_t used = 0;  // a number that grows
    bool here = false;
  };
  // What stays, then the later next use first, then what was used longest ago.
  using Key = std::tuple<bool, std::int64_t, std::uint64_t, Slot>;

  // Up to the first plan there is nothing to be kept of a slot, which many sessions never have.
  bool planned() const { return !entries_.empty(); }
  // What is here counts as used in the order in which it would have gone.
  void begin_plans() {
    unforeseen_->offer_victims([&](Slot slot) {
      Entry& entry = at(slot);
      entry.here = true;
      entry.used = ++uses_;
      return true;
    });
  }
  static bool known(const Entry& entry) { return entry.expected != Expectation{}; }
  static Key key(Slot slot, const Entry& entry) {
    return {!entry.expected.give_up, -entry.expected.next_ns, entry.used, slot};
  }
  void enter(Slot slot, const Entry& entry, Time now) {
    if (known(entry))
      order_.insert(key(slot, entry));
    else
      unforeseen_->arrived(slot, now);
  }
  void leave(Slot slot, const Entry& entry) {
    if (known(entry))
      order_.erase(key(slot, entry));
    else
      unforeseen_->left(slot);
  }
  Entry& at(Slot slot) {
    if (index(slot) >= entries_.size()) entries_.resize(std::max(index(slot) + 1, entries_.size() * 2));
    return entries_[index(slot)];
  }

  std::vector<Entry> entries_;
  std::set<Key> order_;                                                // of what something is known of
  std::unique_ptr<Policy> unforeseen_ = make_scan_resistant_policy();  // of the rest: without a plan, of all
  std::uint64_t uses_ = 0;
};

}  // namespace

std::unique_ptr<Policy> make_next_use_policy() { return std::make_unique<NextUsePolicy>(); }

}  // namespace terrace::engine
