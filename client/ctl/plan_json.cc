// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "ctl/plan_views.h"
#include "picture/picture.h"

namespace terrace::ctl {
namespace {

using forecast::Plan;
using forecast::Point;
using Json = nlohmann::ordered_json;

double microseconds(Duration duration) { return static_cast<double>(duration.count()) / 1e3; }

Json size(std::uint64_t bytes) { return bytes == workload::kUnlimited ? Json() : Json(bytes); }

// As `terrace-sim run --json` has it.
Json bytes_of(const rehearsal::Traffic& traffic, std::uint64_t ranks) {
  const auto ways = [&](const std::array<std::uint64_t, 2>& bytes) {
    return Json{{"in", bytes[0] * ranks}, {"out", bytes[1] * ranks}};
  };
  return {{"hbm", ways(traffic.hbm_bytes)}, {"block", ways(traffic.block_bytes)}};
}

rehearsal::Traffic fewest(const workload::Bound& bound) {
  return {.hbm_bytes = {bound.hbm.fewest_in_bytes, bound.hbm.fewest_out_bytes},
          .block_bytes = {bound.block.fewest_in_bytes, bound.block.fewest_out_bytes}};
}

Json tiers_of(const Plan& plan) {
  const workload::Node node = workload::whole(plan.node);
  return {{"hbm", node.hbm_bytes * plan.ranks}, {"dram", size(node.host_bytes)}, {"nvme", size(node.block_bytes)}};
}

// Empty where the figures are the bound's.
Json classes_of(const Plan& plan) {
  Json list = Json::array();
  if (plan.own.outlook->source == forecast::Source::kBound) return list;
  for (std::size_t index = 0; index < workload::kClassNames.size(); ++index) {
    const forecast::ClassOutlook& of_class = plan.own.outlook->classes.at(index);
    if (of_class.held_bytes + of_class.born_bytes == 0) continue;
    const auto mean = [&](std::size_t tier) {
      return std::round(of_class.mean_bytes.at(tier) * static_cast<double>(plan.ranks));
    };
    list.push_back({{"class", workload::kClassNames.at(index)},
                    {"held_bytes", of_class.held_bytes * plan.ranks},
                    {"born_bytes", of_class.born_bytes * plan.ranks},
                    {"mean_bytes", {{"hbm", mean(0)}, {"dram", mean(1)}, {"nvme", mean(2)}}},
                    {"bytes", bytes_of(of_class.traffic, plan.ranks)}});
  }
  return list;
}

Json busy(const Plan& plan) {
  Json times = Json::object();
  for (const forecast::Busy& busy : forecast::busy(*plan.own.outlook, plan.node))
    times[std::string(name(busy.what))] = microseconds(busy.time);
  return times;
}

// Null: nothing is written, and they last.
Json years(const forecast::Wear& wear) { return std::isinf(wear.years) ? Json() : Json(wear.years); }

Json point(const Plan& plan, const Point& point) {
  Json json = {{"dram_bytes", size(point.dram_bytes)}, {"runs", point.outlook.has_value()}};
  if (!point.outlook) {
    json["error"] = point.outlook.error().message;
    return json;
  }
  json["by"] = name(point.outlook->source);
  json["step_us"] = microseconds(point.outlook->step);
  json["compute_us"] = microseconds(point.outlook->compute);
  json["bytes"] = bytes_of(point.outlook->traffic, plan.ranks);
  if (point.bound) {
    json["lower_bound_us"] = microseconds(point.bound->total);
    json["lower_bound_limit"] = name(point.bound->limit);
    json["fewest_bytes"] = bytes_of(fewest(*point.bound), plan.ranks);
  }
  if (point.wear) json["drive_years"] = years(*point.wear);
  return json;
}

Json drives_of(const Plan& plan) {
  if (!plan.own.wear) return nullptr;
  const auto maybe = [](const std::optional<std::uint64_t>& number) { return number ? Json(*number) : Json(); };
  return {{"count", plan.drives.count},
          {"capacity_bytes", plan.drives.capacity_bytes},
          {"rated_writes_a_day", plan.drives.writes_a_day},
          {"rated_years", plan.drives.rated_years},
          {"bytes_a_day", plan.own.wear->bytes_a_day},
          {"writes_a_day", plan.own.wear->writes_a_day},
          {"years", years(*plan.own.wear)},
          {"lasts", plan.own.wear->lasts(plan.drives)},
          {"drives_to_last", std::ceil(plan.own.wear->drives)},
          {"dram_bytes_to_last", maybe(plan.sparing_dram_bytes)},
          {"micro_batches_to_last", maybe(plan.sparing_micro_batches)}};
}

constexpr const char* kScript = R"py(
import json, sys
import matplotlib
matplotlib.use("Agg")
from matplotlib import pyplot

plan = json.load(sys.stdin)
points = [point for point in plan["curve"] if point["runs"]]
dram = [point["dram_bytes"] / 1e9 for point in points]
figure, (above, below) = pyplot.subplots(2, 1, sharex=True, figsize=(7, 6), layout="constrained")
above.plot(dram, [point["step_us"] / 1e6 for point in points], "o-", label="step")
above.plot(dram, [point["lower_bound_us"] / 1e6 for point in points], ":", color="tab:blue", label="least possible")
above.plot(dram, [point["compute_us"] / 1e6 for point in points], "--", color="tab:gray", label="compute")
above.set(ylabel="seconds", ylim=(0, None), title="%s, %d GPUs, on %s" % (plan["model"], plan["gpus"], plan["node"]))
for way, name in (("in", "read"), ("out", "written")):
    line, = below.plot(dram, [point["bytes"]["block"][way] / 1e9 for point in points], "o-", label="NVMe " + name)
    if all(point["by"] != "bound" for point in points):
        below.plot(dram, [point["fewest_bytes"]["block"][way] / 1e9 for point in points], ":", color=line.get_color(),
                   label="fewest possible")
by = sorted({point["by"] for point in points})
below.set(xscale="log", ylim=(0, None), ylabel="GB a step", xlabel="DRAM of each node, GB (by %s)" % " and ".join(by))
below.set_xticks(dram, ["%d" % size for size in dram], rotation=45)
below.set_xticks([], minor=True)
for axes in (above, below):
    if plan["tiers"]["dram"]:
        axes.axvline(plan["tiers"]["dram"] / 1e9, color="tab:green", linewidth=1, label="this node")
    axes.grid(alpha=0.3)
    axes.legend()
figure.savefig(sys.argv[1], dpi=100)
)py";

}  // namespace

nlohmann::ordered_json to_json(const Plan& plan) {
  Json curve = Json::array();
  for (const Point& at : plan.curve) curve.push_back(point(plan, at));
  return {{"model", plan.recipe.model.name},
          {"node", plan.node.name},
          {"gpus", plan.recipe.gpus},
          {"nodes", plan.nodes},
          {"gpus_per_node", plan.ranks},
          {"parameters", plan.recipe.model.parameters()},
          {"peak_bytes", plan.peak_bytes * plan.ranks},
          {"trainers_own_bytes", plan.made.kept_bytes * plan.ranks},
          {"tiers", tiers_of(plan)},
          {"classes", classes_of(plan)},
          {"step", point(plan, plan.own)},
          {"busy_us", busy(plan)},
          {"limit", name(limit(*plan.own.outlook, *plan.own.bound, plan.node))},
          {"curve", curve},
          {"sentences", dram_sentences(plan)},
          {"drives", drives_of(plan)}};
}

Result<void> draw_plan(const Plan& plan, const std::string& file, const std::string& python) {
  return picture::draw(kScript, to_json(plan).dump(), file, python);
}

}  // namespace terrace::ctl
