// SPDX-License-Identifier: Apache-2.0
// Least recently used, as a doubly linked list whose links lie by slot: constant time, no allocation once there are
// links up to the highest slot. They grow by a block at a time, without holes in the heap where they were before.
#include <deque>

#include "base/check.h"
#include "engine/policy/policy.h"

namespace terrace::engine {
namespace {

constexpr std::uint32_t kNone = UINT32_MAX;
constexpr std::uint32_t kAway = UINT32_MAX - 1;  // has no copy in the tier

class LruPolicy final : public Policy {
 public:
  void arrived(Slot slot, Time) override {
    const auto at = static_cast<std::uint32_t>(slot);
    if (at >= links_.size()) links_.resize(at + std::size_t{1});
    TERRACE_CHECK(!links_[at].here());
    append(at);
  }

  void used(Slot slot, Time) override {
    const auto at = static_cast<std::uint32_t>(slot);
    if (at >= links_.size() || !links_[at].here() || at == newest_) return;
    unlink(at);
    append(at);
  }

  void left(Slot slot) override {
    const auto at = static_cast<std::uint32_t>(slot);
    TERRACE_CHECK(at < links_.size() && links_[at].here());
    unlink(at);
    links_[at].older = kAway;
  }

  void offer_victims(const std::function<bool(Slot)>& take) const override {
    for (std::uint32_t at = oldest_; at != kNone;) {
      const std::uint32_t newer = links_[at].newer;  // `take` may make the slot leave
      if (!take(Slot{at})) return;
      at = newer;
    }
  }

 private:
  struct Links {
    std::uint32_t older = kAway;
    std::uint32_t newer = kNone;
    bool here() const { return older != kAway; }
  };

  void append(std::uint32_t at) {
    links_[at].older = newest_;
    links_[at].newer = kNone;
    (newest_ == kNone ? oldest_ : links_[newest_].newer) = at;
    newest_ = at;
  }
  void unlink(std::uint32_t at) {
    const Links& links = links_[at];
    (links.older == kNone ? oldest_ : links_[links.older].newer) = links.newer;
    (links.newer == kNone ? newest_ : links_[links.newer].older) = links.older;
  }

  std::deque<Links> links_;
  std::uint32_t oldest_ = kNone;
  std::uint32_t newest_ = kNone;
};

}  // namespace

std::unique_ptr<Policy> make_lru_policy() { return std::make_unique<LruPolicy>(); }

}  // namespace terrace::engine
