// SPDX-License-Identifier: Apache-2.0
// S3-FIFO: newcomers pass a small queue, and what is used there again, or comes back soon after it left, goes on into
// the main one, where each use buys one more round. The list of those that left holds twice as many as the tier: a loop
// over up to twice the tier's content finds its beginning still known there, and its greater part settles in the main
// queue instead of being flushed by its own rest.
#include <algorithm>
#include <array>
#include <deque>
#include <vector>

#include "base/check.h"
#include "engine/policy/policy.h"

namespace terrace::engine {
namespace {

constexpr std::uint32_t kNobody = UINT32_MAX;
constexpr std::uint8_t kUsesMax = 3;     // counted
constexpr std::size_t kSmallOneIn = 10;  // part of the copies that the small queue may have
constexpr std::size_t kGhostsPerCopy = 2;

class S3FifoPolicy final : public Policy {
 public:
  void arrived(Slot slot, Time) override {
    if (index(slot) >= entries_.size()) entries_.resize(std::max(index(slot) + 1, entries_.size() * 2));
    Entry& entry = entries_[index(slot)];
    TERRACE_CHECK(entry.queue == kNowhere);
    entry.uses = 0;
    append(slot, entry.ghost != 0 ? kMain : kSmall);
    entry.ghost = 0;
    most_ = std::max(most_, count_[kSmall] + count_[kMain]);
  }

  void used(Slot slot, Time) override {
    if (index(slot) >= entries_.size() || entries_[index(slot)].queue == kNowhere) return;
    Entry& entry = entries_[index(slot)];
    if (entry.uses < kUsesMax) ++entry.uses;
    if (next_[entry.queue] == static_cast<std::uint32_t>(slot)) find_next(entry.queue, next_[entry.queue]);
  }

  void left(Slot slot) override {
    Entry& entry = entries_[index(slot)];
    TERRACE_CHECK(entry.queue != kNowhere);
    const Queue queue = entry.queue;
    if (is_next(slot)) pass_over(slot);
    unlink(slot);
    if (queue == kSmall) remember(slot);
  }

  // As the algorithm would come to them, if nothing were used meanwhile.
  void offer_victims(const std::function<bool(Slot)>& take) const override {
    const bool small_first = count_[kSmall] * kSmallOneIn >= count_[kSmall] + count_[kMain];
    for (std::uint8_t uses = 0; uses <= kUsesMax; ++uses)
      for (const Queue queue : {small_first ? kSmall : kMain, small_first ? kMain : kSmall})
        for (std::uint32_t at = uses == 0 ? next_[queue] : first_[queue]; at != kNobody;) {
          const std::uint32_t next = entries_[at].next;  // `take` may make the slot leave
          if (rounds(entries_[at]) == uses && !take(Slot{at})) return;
          at = next;
        }
  }

 private:
  enum Queue : std::uint8_t { kSmall, kMain, kNowhere };
  struct Entry {
    std::uint32_t next = kNobody;
    std::uint32_t before = kNobody;
    std::uint64_t ghost = 0;  // number of its leaving, while it is remembered
    Queue queue = kNowhere;
    std::uint8_t uses = 0;
  };

  // The use that brought it does not count in the small queue.
  static std::uint8_t rounds(const Entry& entry) {
    return entry.queue == kSmall && entry.uses > 0 ? static_cast<std::uint8_t>(entry.uses - 1) : entry.uses;
  }

  // Whether all before it in its queue have uses to their credit, and it has none.
  bool is_next(Slot slot) const { return next_[entries_[index(slot)].queue] == static_cast<std::uint32_t>(slot); }

  // From here on. Uses only ever come, except to those that go to an end: so that no entry is looked at twice.
  void find_next(Queue queue, std::uint32_t at) {
    while (at != kNobody && rounds(entries_[at]) != 0) at = entries_[at].next;
    next_[queue] = at;
  }

  // Those before it go to the end of the main queue, one use poorer.
  void pass_over(Slot slot) {
    const Queue queue = entries_[index(slot)].queue;
    while (first_[queue] != static_cast<std::uint32_t>(slot)) {
      const Slot passed{first_[queue]};
      unlink(passed);
      Entry& entry = entries_[index(passed)];
      entry.uses = queue == kSmall ? 0 : static_cast<std::uint8_t>(entry.uses - 1);
      append(passed, kMain);
    }
  }

  void remember(Slot slot) {
    Entry& entry = entries_[index(slot)];
    entry.ghost = ++leavings_;
    ghosts_.emplace_back(slot, leavings_);
    while (ghosts_.size() > std::max<std::size_t>(kGhostsPerCopy * most_, 1)) {
      const auto [oldest, number] = ghosts_.front();
      ghosts_.pop_front();
      if (entries_[index(oldest)].ghost == number) entries_[index(oldest)].ghost = 0;
    }
  }

  void append(Slot slot, Queue queue) {
    const auto at = static_cast<std::uint32_t>(slot);
    Entry& entry = entries_[at];
    entry.queue = queue;
    entry.before = last_[queue];
    entry.next = kNobody;
    (last_[queue] == kNobody ? first_[queue] : entries_[last_[queue]].next) = at;
    last_[queue] = at;
    if (next_[queue] == kNobody) find_next(queue, at);
    ++count_[queue];
  }

  void unlink(Slot slot) {
    Entry& entry = entries_[index(slot)];
    const Queue queue = entry.queue;
    if (next_[queue] == static_cast<std::uint32_t>(slot)) find_next(queue, entry.next);
    (entry.before == kNobody ? first_[queue] : entries_[entry.before].next) = entry.next;
    (entry.next == kNobody ? last_[queue] : entries_[entry.next].before) = entry.before;
    entry.queue = kNowhere;
    --count_[queue];
  }

  std::vector<Entry> entries_;
  std::array<std::uint32_t, 2> first_{kNobody, kNobody};
  std::array<std::uint32_t, 2> last_{kNobody, kNobody};
  std::array<std::uint32_t, 2> next_{kNobody, kNobody};  // the first that has no uses to its credit
  std::array<std::size_t, 2> count_{};
  std::size_t most_ = 0;  // copies there ever were at once
  std::deque<std::pair<Slot, std::uint64_t>> ghosts_;
  std::uint64_t leavings_ = 0;
};

}  // namespace

std::unique_ptr<Policy> make_s3_fifo_policy() { return std::make_unique<S3FifoPolicy>(); }

}  // namespace terrace::engine
