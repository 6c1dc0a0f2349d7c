// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "ctl/plan_views.h"

namespace terrace::ctl {
namespace {

using forecast::Outlook;
using forecast::Plan;
using forecast::Point;

std::uint64_t both_ways(const rehearsal::Traffic& traffic) { return traffic.block_bytes[0] + traffic.block_bytes[1]; }

// The class with the most of the drives' traffic, by what it is called; nothing where it is not known by class.
struct Whose {
  std::string_view owner;
  std::size_t index;
};
std::optional<Whose> whose(const Outlook& outlook) {
  constexpr std::array<std::string_view, workload::kClassNames.size()> kOwners = {
      "the weights'", "the gradients'", "the optimizer's", "the activations'", "the data's"};
  if (outlook.source == forecast::Source::kBound) return std::nullopt;
  const auto most = std::ranges::max_element(
      outlook.classes, {}, [](const forecast::ClassOutlook& of_class) { return both_ways(of_class.traffic); });
  const auto index = static_cast<std::size_t>(most - outlook.classes.begin());
  return Whose{kOwners.at(index), index};
}

// "more" is the point with more DRAM than `less`; both run.
std::string compare(const Plan& plan, const Point& less, const Point& more, std::string_view verb) {
  const auto owner = more.outlook->source == less.outlook->source ? whose(*less.outlook) : std::nullopt;
  const auto gigabytes = [&](const Outlook& outlook, std::size_t way) {
    const rehearsal::Traffic& traffic = owner ? outlook.classes.at(owner->index).traffic : outlook.traffic;
    return static_cast<double>(traffic.block_bytes.at(way) * plan.ranks) / 1e9;
  };
  return fmt::format(
      "{:.0f} GB of DRAM {} {} NVMe traffic from {:.0f} to {:.0f} GB a step read, and from {:.0f} to {:.0f} GB written "
      "(against {:.0f} GB of DRAM)",
      static_cast<double>(more.dram_bytes) / 1e9, verb, owner ? owner->owner : "the", gigabytes(*less.outlook, 0),
      gigabytes(*more.outlook, 0), gigabytes(*less.outlook, 1), gigabytes(*more.outlook, 1),
      static_cast<double>(less.dram_bytes) / 1e9);
}

}  // namespace

std::vector<std::string> dram_sentences(const Plan& plan) {
  std::vector<std::string> sentences;
  const auto runs = [](const Point& point) { return point.outlook.has_value(); };
  const auto least = std::ranges::find_if(plan.curve, runs);
  if (plan.drives.count == 0) {
    if (least != plan.curve.end() && least->dram_bytes < plan.own.dram_bytes)
      sentences.push_back(fmt::format("{:.0f} GB of DRAM would do{}", static_cast<double>(least->dram_bytes) / 1e9,
                                      least == plan.curve.begin() ? "" : ": with the next smaller it does not run"));
    return sentences;
  }
  if (least != plan.curve.end() && least->dram_bytes < plan.own.dram_bytes &&
      both_ways(least->outlook->traffic) > both_ways(plan.own.outlook->traffic))
    sentences.push_back(compare(plan, *least, plan.own, "cut"));
  if (!plan.curve.empty() && plan.curve.back().outlook && plan.curve.back().dram_bytes > plan.own.dram_bytes &&
      both_ways(plan.curve.back().outlook->traffic) < both_ways(plan.own.outlook->traffic))
    sentences.push_back(compare(plan, plan.own, plan.curve.back(), "would cut"));
  const auto enough = std::ranges::find_if(
      plan.curve, [&](const Point& point) { return runs(point) && both_ways(point.outlook->traffic) == 0; });
  if (enough != plan.curve.end() && enough->dram_bytes < plan.own.dram_bytes)
    sentences.push_back(fmt::format("{:.0f} GB of DRAM would do: nothing moves to or from the NVMe",
                                    static_cast<double>(enough->dram_bytes) / 1e9));
  return sentences;
}

}  // namespace terrace::ctl
