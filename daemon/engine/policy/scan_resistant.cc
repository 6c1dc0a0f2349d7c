// SPDX-License-Identifier: Apache-2.0
// Newcomers pass a small queue, first in, first out, whatever they are used for there (2Q: Johnson and Shasha, VLDB
// 1994). One that comes again settles, least recently used first, only if it was used after the oldest of those that
// are settled (LIRS: Jiang and Zhang, SIGMETRICS 2002): in a loop nothing is, and what is settled stays. When a slot
// was used is known for as long as there is the slot, so that no loop is too long for what is remembered.
//
// A slot takes 12 bytes: a million tensors without a plan are nothing unusual. The queues are linked lists through the
// slots' entries, which stay where they are while there are more of them.
#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "base/check.h"
#include "base/growing_array.h"
#include "engine/policy/policy.h"

namespace terrace::engine {
namespace {

constexpr std::size_t kNewOneIn = 32;  // part of the copies that are new, one at least
constexpr std::uint32_t kNoSlot = (1u << 30) - 1;

class ScanResistantPolicy final : public Policy {
 public:
  explicit ScanResistantPolicy(std::uint32_t uses_max) : uses_max_(uses_max) {}

  void arrived(Slot slot, Time) override {
    const auto at = static_cast<std::uint32_t>(slot);
    TERRACE_CHECK(at < kNoSlot);
    while (at >= entries_.size()) entries_.add();
    TERRACE_CHECK(entries_[at].queue() == kNowhere);
    const std::size_t copies = count_[kNew] + count_[kSettled] + 1;
    const bool room = count_[kSettled] + std::max<std::size_t>(copies / kNewOneIn, 1) < copies;
    const std::uint32_t oldest = first_[kSettled];
    const bool recurs = oldest != kNoSlot && entries_[at].used > entries_[oldest].used;
    if (recurs && !room) {
      unlink(oldest);
      append(oldest, kNew);
    }
    append(at, recurs || room ? kSettled : kNew);
  }

  void used(Slot slot, Time) override {
    const auto at = static_cast<std::uint32_t>(slot);
    if (at >= entries_.size() || entries_[at].queue() == kNowhere) return;
    if (uses_ == uses_max_) count_uses_anew();
    entries_[at].used = ++uses_;
    if (entries_[at].queue() != kSettled || at == last_[kSettled]) return;
    unlink(at);
    append(at, kSettled);
  }

  void left(Slot slot) override {
    const auto at = static_cast<std::uint32_t>(slot);
    TERRACE_CHECK(at < entries_.size() && entries_[at].queue() != kNowhere);
    unlink(at);
  }

  void offer_victims(const std::function<bool(Slot)>& take) const override {
    for (const Queue queue : {kNew, kSettled})
      for (std::uint32_t at = first_[queue]; at != kNoSlot;) {
        const std::uint32_t next = entries_[at].next();  // `take` may make the slot leave
        if (!take(Slot{at})) return;
        at = next;
      }
  }

 private:
  enum Queue : std::uint32_t { kNew, kSettled, kNowhere };  // kNowhere: it has no copy in the tier
  struct Entry {
    std::uint32_t place = kNowhere << 30 | kNoSlot;  // what follows it, and above that the queue that it is in
    std::uint32_t before = kNoSlot;
    std::uint32_t used = 0;  // number of its last use
    std::uint32_t next() const { return place & kNoSlot; }
    Queue queue() const { return static_cast<Queue>(place >> 30); }
    void put(Queue queue, std::uint32_t next) { place = queue << 30 | next; }
  };
  static_assert(sizeof(Entry) == 12);

  void append(std::uint32_t at, Queue queue) {
    const std::uint32_t last = last_[queue];
    entries_[at].put(queue, kNoSlot);
    entries_[at].before = last;
    if (last == kNoSlot)
      first_[queue] = at;
    else
      entries_[last].put(queue, at);
    last_[queue] = at;
    ++count_[queue];
  }

  void unlink(std::uint32_t at) {
    const Queue queue = entries_[at].queue();
    const std::uint32_t before = entries_[at].before;
    const std::uint32_t next = entries_[at].next();
    if (before == kNoSlot)
      first_[queue] = next;
    else
      entries_[before].put(queue, next);
    (next == kNoSlot ? last_[queue] : entries_[next].before) = before;
    --count_[queue];
    entries_[at].put(kNowhere, kNoSlot);
  }

  // The same order by smaller numbers, once in billions of uses.
  void count_uses_anew() {
    std::vector<std::uint32_t> used;
    for (std::uint32_t at = 0; at < entries_.size(); ++at)
      if (entries_[at].used != 0) used.push_back(at);
    std::ranges::sort(used, {}, [&](std::uint32_t at) { return entries_[at].used; });
    uses_ = 0;
    for (const std::uint32_t at : used) entries_[at].used = ++uses_;
  }

  GrowingArray<Entry> entries_;
  std::array<std::uint32_t, 2> first_{kNoSlot, kNoSlot};
  std::array<std::uint32_t, 2> last_{kNoSlot, kNoSlot};
  std::array<std::size_t, 2> count_{};
  std::uint32_t uses_ = 0;
  std::uint32_t uses_max_;
};

}  // namespace

std::unique_ptr<Policy> make_scan_resistant_policy() { return make_scan_resistant_policy_counting_to(UINT32_MAX); }

std::unique_ptr<Policy> make_scan_resistant_policy_counting_to(std::uint32_t uses_max) {
  return std::make_unique<ScanResistantPolicy>(uses_max);
}

}  // namespace terrace::engine
