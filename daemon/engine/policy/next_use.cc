// SPDX-License-Identifier: Apache-2.0
// The order of a plan, as an ordered set. What the plan does not speak of has the order of a policy of its own, in
// constant time.
#include <algorithm>
#include <array>
#include <memory>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "base/check.h"
#include "engine/policy/policy.h"

namespace terrace::engine {
namespace {

class NextUsePolicy final : public Policy {
 public:
  void arrived(Slot slot, Time now) override {
    if (index(slot) >= here_.size()) here_.resize(std::max(index(slot) + 1, here_.size() * 2));
    TERRACE_CHECK(!here_[index(slot)]);
    here_[index(slot)] = true;
    if (Entry* const entry = known(slot)) entry->used = ++uses_;
    enter(slot, now);
  }

  void used(Slot slot, Time now) override {
    Entry* const entry = known(slot);
    if (entry == nullptr) return unforeseen_->used(slot, now);
    if (!is_here(slot)) return;
    auto node = order_.extract(key(slot, *entry));
    entry->used = ++uses_;
    node.value() = key(slot, *entry);
    order_.insert(std::move(node));
  }

  void left(Slot slot) override {
    TERRACE_CHECK(is_here(slot));
    leave(slot);
    here_[index(slot)] = false;
  }

  void expect(Slot slot, Expectation what) override {
    if (expected(slot) == what) return;
    if (is_here(slot)) leave(slot);
    at(slot).expected = what;
    if (is_here(slot)) enter(slot, Time{});
  }

  Expectation expected(Slot slot) const override {
    const Entry* const entry = known(slot);
    return entry == nullptr ? Expectation{} : entry->expected;
  }

  void offer_victims(const std::function<bool(Slot)>& take) const override {
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
  };
  // Made once something is foreseen of one of its slots, which of many sessions it never is.
  static constexpr std::size_t kPageEntries = 256;
  using Page = std::array<Entry, kPageEntries>;
  // What stays, then the later next use first, then what was used longest ago.
  using Key = std::tuple<bool, std::int64_t, std::uint64_t, Slot>;

  bool is_here(Slot slot) const { return index(slot) < here_.size() && here_[index(slot)]; }
  static Key key(Slot slot, const Entry& entry) {
    return {!entry.expected.give_up, -entry.expected.next_ns, entry.used, slot};
  }
  // Null: nothing is foreseen of it.
  Entry* known(Slot slot) const {
    const std::size_t page = index(slot) / kPageEntries;
    if (page >= pages_.size() || pages_[page] == nullptr) return nullptr;
    Entry& entry = (*pages_[page])[index(slot) % kPageEntries];
    return entry.expected == Expectation{} ? nullptr : &entry;
  }
  Entry& at(Slot slot) {
    const std::size_t page = index(slot) / kPageEntries;
    if (page >= pages_.size()) pages_.resize(page + 1);
    if (pages_[page] == nullptr) pages_[page] = std::make_unique<Page>();
    return (*pages_[page])[index(slot) % kPageEntries];
  }
  void enter(Slot slot, Time now) {
    if (const Entry* const entry = known(slot))
      order_.insert(key(slot, *entry));
    else
      unforeseen_->arrived(slot, now);
  }
  void leave(Slot slot) {
    if (const Entry* const entry = known(slot))
      order_.erase(key(slot, *entry));
    else
      unforeseen_->left(slot);
  }

  std::vector<bool> here_;                                             // by slot: it has a copy in the tier
  std::vector<std::unique_ptr<Page>> pages_;                           // by slot, too
  std::set<Key> order_;                                                // of what something is known of
  std::unique_ptr<Policy> unforeseen_ = make_scan_resistant_policy();  // of the rest
  std::uint64_t uses_ = 0;
};

}  // namespace

std::unique_ptr<Policy> make_next_use_policy() { return std::make_unique<NextUsePolicy>(); }

}  // namespace terrace::engine
