// SPDX-License-Identifier: Apache-2.0
#include "foresight/template.h"

#include <algorithm>
#include <utility>

namespace terrace::foresight {
namespace {

constexpr std::size_t kWindow = 128;     // uses that two steps may be apart and still be matched
constexpr std::int64_t kTimeWeight = 4;  // one in so many parts of a time comes from the last step

bool same(const TemplateUse& a, const TemplateUse& b) { return a.slot == b.slot && a.place == b.place; }

// Distance to the first of `uses` from `at` on that is the same as `use`.
std::size_t distance(const std::vector<TemplateUse>& uses, std::size_t at, const TemplateUse& use) {
  const std::size_t end = std::min(uses.size(), at + kWindow);
  for (std::size_t i = at; i < end; ++i)
    if (same(uses[i], use)) return i - at;
  return kWindow;
}

}  // namespace

Match Template::learn(std::vector<TemplateUse> step, std::int64_t period) {
  Match match;
  const bool first = uses.empty();
  std::vector<TemplateUse> merged;
  merged.reserve(step.size());
  std::size_t known = 0;
  std::size_t seen = 0;
  const auto miss = [&] {
    ++match.missed;
    TemplateUse use = uses[known++];
    const std::uint8_t trust = use.trust > 1 ? use.trust - 1 : 0;
    if (trust == 0 || merged.size() >= kUsesMax) return;
    if (trust < kTrusted && use.trust >= kTrusted) ++version;
    use.trust = trust;
    if (!merged.empty()) use.at_ns = std::max(use.at_ns, merged.back().at_ns);
    merged.push_back(use);
  };
  const auto add = [&] {
    TemplateUse use = step[seen++];
    if (merged.size() >= kUsesMax) return;
    use.trust = first ? kTrusted : 1;
    match.added += first ? 0 : 1;
    merged.push_back(use);
  };
  const auto meet = [&] {
    ++match.matched;
    TemplateUse use = step[seen++];
    const TemplateUse& was = uses[known++];
    if (merged.size() >= kUsesMax) return;
    use.at_ns = was.at_ns + (use.at_ns - was.at_ns) / kTimeWeight;
    use.trust = std::min<std::uint8_t>(was.trust + 1, kTrustMax);
    if (was.trust < kTrusted || use.mode != was.mode || use.dies != was.dies || use.bytes != was.bytes) ++version;
    if (!merged.empty()) use.at_ns = std::max(use.at_ns, merged.back().at_ns);
    merged.push_back(use);
  };
  while (known < uses.size() && seen < step.size()) {
    if (same(uses[known], step[seen])) {
      meet();
      continue;
    }
    const std::size_t ahead_known = distance(uses, known, step[seen]);
    const std::size_t ahead_seen = distance(step, seen, uses[known]);
    if (ahead_known == kWindow && ahead_seen == kWindow) {
      miss();
      add();
    } else if (ahead_seen <= ahead_known) {
      for (std::size_t i = 0; i < ahead_seen; ++i) add();
    } else {
      for (std::size_t i = 0; i < ahead_known; ++i) miss();
    }
  }
  while (known < uses.size()) miss();
  while (seen < step.size()) add();
  if (first) ++version;
  uses = std::move(merged);
  period_ns = first ? period : period_ns + (period - period_ns) / kTimeWeight;
  if (!uses.empty()) period_ns = std::max(period_ns, uses.back().at_ns);
  return match;
}

}  // namespace terrace::foresight
