// SPDX-License-Identifier: Apache-2.0
#include "foresight/template.h"

#include <algorithm>
#include <utility>

#include "foresight/alignment.h"

namespace terrace::foresight {
namespace {

constexpr std::int64_t kTimeWeight = 4;  // one in so many parts of a time comes from the last step

// Uses of a tensor at one place are the same.
std::vector<std::uint64_t> keys_of(const std::vector<TemplateUse>& uses) {
  std::vector<std::uint64_t> keys;
  keys.reserve(uses.size());
  for (const TemplateUse& use : uses)
    keys.push_back(std::uint64_t{static_cast<std::uint32_t>(use.slot)} << 32 | use.place);
  return keys;
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
    use.trust = first ? kTrusted + 1 : 1;
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
  for (const Edit edit : align(keys_of(uses), keys_of(step))) {
    if (edit == Edit::kBoth)
      meet();
    else if (edit == Edit::kFirst)
      miss();
    else
      add();
  }
  if (first) ++version;
  uses = std::move(merged);
  period_ns = first ? period : period_ns + (period - period_ns) / kTimeWeight;
  if (!uses.empty()) period_ns = std::max(period_ns, uses.back().at_ns);
  return match;
}

}  // namespace terrace::foresight
