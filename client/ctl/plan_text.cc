// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ctl/plan_views.h"
#include "ctl/table.h"

namespace terrace::ctl {
namespace {

using forecast::Outlook;
using forecast::Plan;
using forecast::Point;

double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

// Of a node, in 1e9 bytes.
std::string gigabytes(double bytes) { return fmt::format("{:.{}f}", bytes / 1e9, bytes < 9.95e9 ? 1 : 0); }

std::string capacity(std::uint64_t bytes) {
  return bytes == workload::kUnlimited ? "unlimited" : gigabytes(static_cast<double>(bytes)) + " GB";
}

std::string life(double years) {
  if (std::isinf(years)) return "nothing is written";
  if (years >= 1) return fmt::format("{:.1f} years", years);
  return years * 365 >= 1.5 ? fmt::format("{:.0f} days", years * 365) : fmt::format("{:.0f} hours", years * 365 * 24);
}

// How many times the node's HBM; "-" for a size without end.
std::string times_hbm(const Plan& plan, std::uint64_t bytes) {
  if (bytes == workload::kUnlimited) return "-";
  return fmt::format("{:.1f}", static_cast<double>(bytes) / static_cast<double>(plan.node.hbm_bytes * plan.ranks));
}

std::string heading(const Plan& plan) {
  const workload::Recipe& recipe = plan.recipe;
  std::string text = fmt::format("{} on {}: {} GPUs on {} {}, batch {} x {} x {} tokens", recipe.model.name,
                                 plan.node.name, recipe.gpus, plan.nodes, plan.nodes == 1 ? "node" : "nodes",
                                 recipe.batch, recipe.micro_batches, recipe.model.sequence);
  text += fmt::format("\neach GPU holds {:.2f}e9 parameters, and {} GB at the step's peak",
                      static_cast<double>(plan.made.held_parameters) / 1e9,
                      gigabytes(static_cast<double>(plan.peak_bytes)));
  if (plan.made.kept_bytes > 0)
    text += fmt::format("; {} GB of a step are the trainer's own, and need room beside",
                        gigabytes(static_cast<double>(plan.made.kept_bytes)));
  return text + "\n\n";
}

std::string tiers(const Plan& plan) {
  const workload::Node node = workload::whole(plan.node);
  Table table({"TIER", ">EACH NODE", ">EACH GPU", ">X HBM"});
  table.add({"HBM", capacity(node.hbm_bytes * plan.ranks), capacity(node.hbm_bytes), "1.0"});
  if (node.host_bytes > 0)
    table.add({"DRAM", capacity(node.host_bytes), capacity(plan.node.host_bytes), times_hbm(plan, node.host_bytes)});
  if (node.block_bytes > 0)
    table.add({"NVMe", capacity(node.block_bytes), capacity(plan.node.block_bytes), times_hbm(plan, node.block_bytes)});
  return table.text() + '\n';
}

std::string classes(const Plan& plan) {
  const Outlook& outlook = *plan.own.outlook;
  if (outlook.source == forecast::Source::kBound) return "where each class lives is known of a rehearsal alone\n\n";
  constexpr std::array<const char*, workload::kClassNames.size()> kNames = {"weights", "gradients", "optimizer",
                                                                            "activations", "data"};
  const auto of_node = [&](auto bytes) {
    return gigabytes(static_cast<double>(bytes) * static_cast<double>(plan.ranks));
  };
  Table table(
      {"CLASS", ">HELD", ">BORN", ">IN HBM", ">IN DRAM", ">ON NVME", ">TO HBM", ">FROM HBM", ">NVME READ", ">WRITTEN"});
  for (std::size_t index = 0; index < kNames.size(); ++index) {
    const forecast::ClassOutlook& of_class = outlook.classes.at(index);
    if (of_class.held_bytes + of_class.born_bytes == 0) continue;
    std::vector<std::string> row{kNames.at(index), of_node(of_class.held_bytes), of_node(of_class.born_bytes)};
    for (const double mean : of_class.mean_bytes) row.push_back(of_node(mean));
    for (const std::uint64_t bytes : of_class.traffic.hbm_bytes) row.push_back(of_node(bytes));
    for (const std::uint64_t bytes : of_class.traffic.block_bytes) row.push_back(of_node(bytes));
    table.add(std::move(row));
  }
  return "where each class lives (GB of a node: from step to step, born in one, on average over it, and moved in "
         "it)\n" +
         table.text() + '\n';
}

constexpr std::array<const char*, workload::kLimitNames.size()> kLimits = {
    "compute",
    "the link to HBM",
    "the link from HBM",
    "the link to and from HBM",
    "the link from HBM, by what must leave at one time",
    "NVMe reads",
    "NVMe writes",
    "NVMe reads and writes",
    "NVMe writes, by what must leave DRAM at one time"};

const char* called(workload::Limit limit) { return kLimits.at(static_cast<std::size_t>(limit)); }

std::string step(const Plan& plan) {
  const Outlook& outlook = *plan.own.outlook;
  const double all = seconds(outlook.step);
  std::string text = fmt::format("a step takes {:.3f} s (by {}): {:.3f} s of compute, and {:.3f} s of waits\n", all,
                                 name(outlook.source), seconds(outlook.compute), all - seconds(outlook.compute));
  Table table({"AT WORK", ">SECONDS", ">OF THE STEP"});
  for (const forecast::Busy& busy : busy(outlook, plan.node))
    table.add({called(busy.what), fmt::format("{:.3f}", seconds(busy.time)),
               fmt::format("{:.0f} %", 100 * seconds(busy.time) / all)});
  const workload::Limit most = limit(outlook, *plan.own.bound, plan.node);
  const std::string of_bound =
      most == plan.own.bound->limit ? "" : fmt::format(", for {}", called(plan.own.bound->limit));
  return text + table.text() +
         fmt::format("its limit is {}; no schedule takes less than {:.3f} s{} (the bound)\n\n", called(most),
                     seconds(plan.own.bound->total), of_bound);
}

std::vector<std::string> row(const Plan& plan, const Point& point) {
  std::vector<std::string> row{gigabytes(static_cast<double>(point.dram_bytes)), times_hbm(plan, point.dram_bytes)};
  if (!point.outlook) {
    row.insert(row.end(), {"does not run", "", "", "", "", "", "", "", ""});
    return row;
  }
  const Outlook& outlook = *point.outlook;
  const auto of_node = [&](std::uint64_t bytes) { return gigabytes(static_cast<double>(bytes * plan.ranks)); };
  for (const Duration time : {outlook.step, point.bound->total}) row.push_back(fmt::format("{:.3f}", seconds(time)));
  row.push_back(fmt::format("{:.2f}", seconds(outlook.step) / seconds(outlook.compute)));
  row.push_back(of_node(outlook.traffic.block_bytes[0]));
  row.push_back(of_node(point.bound->block.fewest_in_bytes));
  row.push_back(of_node(outlook.traffic.block_bytes[1]));
  row.push_back(of_node(point.bound->block.fewest_out_bytes));
  row.push_back(point.wear ? life(point.wear->years) : "");
  row.emplace_back(name(outlook.source));
  return row;
}

std::string curve(const Plan& plan) {
  if (plan.curve.empty()) return "";
  Table table({">DRAM GB", ">X HBM", ">STEP S", ">LEAST", ">X COMPUTE", ">NVME READ GB", ">FEWEST", ">WRITTEN GB",
               ">FEWEST", ">DRIVES LAST", "BY"});
  for (const Point& point : plan.curve) table.add(row(plan, point));
  std::string text =
      "another amount of DRAM in each node, a step of it (least, fewest: what no schedule beats)\n" + table.text();
  for (const std::string& sentence : dram_sentences(plan)) text += sentence + '\n';
  return text + '\n';
}

std::string drives(const Plan& plan) {
  if (!plan.own.wear) return "";
  const forecast::Drives& these = plan.drives;
  const forecast::Wear& wear = *plan.own.wear;
  std::string text = fmt::format(
      "each node's drives: {} of {:.4g} TB, rated for {:g} drive writes a day over {:g} years: {:.1f} PB together\n",
      these.count, static_cast<double>(these.capacity_bytes) / 1e12, these.writes_a_day, these.rated_years,
      these.rated_bytes() / 1e15);
  if (std::isinf(wear.years)) return text + "nothing is written to them\n";
  text += fmt::format("{:.1f} TB are written a day, {:.1f} drive writes: they last {}\n", wear.bytes_a_day / 1e12,
                      wear.writes_a_day, life(wear.years));
  if (wear.lasts(these)) return text;
  text += fmt::format("to last {:g} years:\n", these.rated_years);
  if (plan.sparing_dram_bytes)
    text += fmt::format("  {:.0f} GB of DRAM\n", static_cast<double>(*plan.sparing_dram_bytes) / 1e9);
  if (plan.sparing_micro_batches)
    text += fmt::format("  or fewer write-backs: a step of {} micro-batches instead of {}\n",
                        *plan.sparing_micro_batches, plan.recipe.micro_batches);
  return text + fmt::format("  or {:.0f} drives, or drives rated for {:.1f} drive writes a day\n",
                            std::ceil(wear.drives), wear.writes_a_day);
}

}  // namespace

std::string plan_text(const Plan& plan) {
  return heading(plan) + tiers(plan) + classes(plan) + step(plan) + curve(plan) + drives(plan);
}

}  // namespace terrace::ctl
