// SPDX-License-Identifier: Apache-2.0
// Newcomers pass a small queue, first in, first out, whatever they are used for there (2Q: Johnson and Shasha, VLDB
// 1994). One that comes again settles, least recently used first, only if it was used after the oldest of those that
// are settled (LIRS: Jiang and Zhang, SIGMETRICS 2002): in a loop nothing is, and what is settled stays. When a slot
// was used is known for as long as there is the slot, so that no loop is too long for what is remembered.
#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "base/check.h"
#include "engine/policy.h"

namespace terrace::engine {
namespace {

constexpr std::size_t kNewOneIn = 32;  // part of the copies that are new, one at least

class ScanResistantPolicy final : public Policy {
 public:
  void arrived(Slot slot, Time now) override {
    if (index(slot) >= entries_.size()) entries_.resize(std::max(index(slot) + 1, entries_.size() * 2));
    Entry& entry = entries_[index(slot)];
    TERRACE_CHECK(entry.queue == nullptr);
    ++copies_;
    const bool room = settled_copies_ + std::max<std::size_t>(copies_ / kNewOneIn, 1) < copies_;
    const auto oldest = first(*settled_);
    const bool recurs = oldest && entry.used > entries_[index(*oldest)].used;
    if (recurs && !room) {
      leave(*oldest);
      enter(*oldest, *new_, now);
    }
    enter(slot, recurs || room ? *settled_ : *new_, now);
  }

  void used(Slot slot, Time now) override {
    if (index(slot) >= entries_.size() || entries_[index(slot)].queue == nullptr) return;
    Entry& entry = entries_[index(slot)];
    entry.used = ++uses_;
    if (entry.queue == settled_.get()) settled_->used(slot, now);
  }

  void left(Slot slot) override {
    TERRACE_CHECK(index(slot) < entries_.size() && entries_[index(slot)].queue != nullptr);
    leave(slot);
    --copies_;
  }

  void offer_victims(const std::function<bool(Slot)>& take) const override {
    bool more = true;
    for (const Policy* queue : {new_.get(), settled_.get()})
      if (more) queue->offer_victims([&](Slot slot) { return more = take(slot); });
  }

 private:
  struct Entry {
    Policy* queue = nullptr;  // that it is in; none: it has no copy in the tier
    std::uint64_t used = 0;   // number of its last use
  };

  static std::optional<Slot> first(const Policy& queue) {
    std::optional<Slot> found;
    queue.offer_victims([&](Slot slot) {
      found = slot;
      return false;
    });
    return found;
  }
  void enter(Slot slot, Policy& queue, Time now) {
    entries_[index(slot)].queue = &queue;
    queue.arrived(slot, now);
    settled_copies_ += &queue == settled_.get() ? 1 : 0;
  }
  void leave(Slot slot) {
    Entry& entry = entries_[index(slot)];
    settled_copies_ -= entry.queue == settled_.get() ? 1 : 0;
    entry.queue->left(slot);
    entry.queue = nullptr;
  }

  std::vector<Entry> entries_;
  std::unique_ptr<Policy> new_ = make_lru_policy();  // told of no use: first in, first out
  std::unique_ptr<Policy> settled_ = make_lru_policy();
  std::size_t copies_ = 0;
  std::size_t settled_copies_ = 0;
  std::uint64_t uses_ = 0;
};

}  // namespace

std::unique_ptr<Policy> make_scan_resistant_policy() { return std::make_unique<ScanResistantPolicy>(); }

}  // namespace terrace::engine
