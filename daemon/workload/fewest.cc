// SPDX-License-Identifier: Apache-2.0
#include "workload/fewest.h"

// Without what the library has compiled: of its headers, templates are all we use.
#define LEMON_ONLY_TEMPLATES
#include <lemon/network_simplex.h>
#include <lemon/smart_graph.h>

#include <algorithm>

#include "base/check.h"

namespace terrace::workload {
namespace {

// Prices are counted in so many parts of a byte moved for each byte of memory.
constexpr std::int64_t kPriceParts = std::int64_t{1} << 20;
// Each price cuts off what the last two proved; the files at hand take six to twelve.
constexpr int kPricesMax = 64;

// What is kept if memory has a price. The circle's boundaries between runs are the network's nodes. From the boundary
// before a run to the one behind it goes the room that stays free; over an item's runs goes what of it is kept. So much
// flows past every run, beside what is taken, as there is memory: all runs have the same, but how much is not said by
// the network. It is bought, at run 0, at a price; where the amount bought is the capacity, or jumps over it, the price
// is right.
class Circle {
 public:
  explicit Circle(const Choices& choices) : choices_(choices) {
    const std::size_t runs = choices.taken_bytes.size();
    const auto node = [&](std::size_t boundary) {
      return lemon::SmartDigraph::nodeFromId(static_cast<int>(boundary % runs));
    };
    graph_.reserveNode(static_cast<int>(runs));
    graph_.reserveArc(static_cast<int>(runs + choices.items.size()));
    for (std::size_t run = 0; run < runs; ++run) graph_.addNode();
    for (std::size_t run = 0; run < runs; ++run) graph_.addArc(node(run), node(run + 1));
    for (const Item& item : choices.items) graph_.addArc(node(item.first), node(item.first + item.runs));
  }

  // A schedule that is the cheapest at some price.
  struct Schedule {
    std::int64_t moved_bytes = 0;
    std::int64_t memory_bytes = 0;
  };

  Schedule cheapest(std::int64_t price) const {
    using Simplex = lemon::NetworkSimplex<lemon::SmartDigraph, std::int64_t, std::int64_t>;
    const std::size_t runs = choices_.taken_bytes.size();
    lemon::SmartDigraph::ArcMap<std::int64_t> upper(graph_, Simplex(graph_).INF);
    lemon::SmartDigraph::ArcMap<std::int64_t> cost(graph_, 0);
    lemon::SmartDigraph::NodeMap<std::int64_t> supply(graph_);
    for (std::size_t run = 0; run < runs; ++run) {
      const std::uint64_t before = choices_.taken_bytes[(run + runs - 1) % runs];
      supply[graph_.nodeFromId(static_cast<int>(run))] =
          static_cast<std::int64_t>(before) - static_cast<std::int64_t>(choices_.taken_bytes[run]);
    }
    cost[free_arc(0)] = price;
    for (std::size_t index = 0; index < choices_.items.size(); ++index) {
      const Item& item = choices_.items[index];
      upper[item_arc(index)] = static_cast<std::int64_t>(item.bytes);
      cost[item_arc(index)] = (passes_run_0(item) ? price : 0) - kPriceParts;
    }
    Simplex simplex(graph_);
    TERRACE_CHECK(simplex.upperMap(upper).costMap(cost).supplyMap(supply).run() == Simplex::OPTIMAL);
    Schedule schedule{.memory_bytes = static_cast<std::int64_t>(choices_.taken_bytes[0]) + simplex.flow(free_arc(0))};
    for (std::size_t index = 0; index < choices_.items.size(); ++index) {
      const std::int64_t kept = simplex.flow(item_arc(index));
      schedule.moved_bytes += static_cast<std::int64_t>(choices_.items[index].bytes) - kept;
      if (passes_run_0(choices_.items[index])) schedule.memory_bytes += kept;
    }
    return schedule;
  }

 private:
  bool passes_run_0(const Item& item) const {
    return item.first == 0 || item.first + item.runs > choices_.taken_bytes.size();
  }
  lemon::SmartDigraph::Arc free_arc(std::size_t run) const { return graph_.arcFromId(static_cast<int>(run)); }
  lemon::SmartDigraph::Arc item_arc(std::size_t index) const {
    return graph_.arcFromId(static_cast<int>(choices_.taken_bytes.size() + index));
  }

  const Choices& choices_;
  lemon::SmartDigraph graph_;
};

// The most that is taken and kept at once where everything is kept.
std::int64_t peak_bytes(const Choices& choices) {
  const std::size_t runs = choices.taken_bytes.size();
  std::vector<std::int64_t> change(runs + 1);
  std::int64_t kept = 0;
  for (const Item& item : choices.items) {
    const auto bytes = static_cast<std::int64_t>(item.bytes);
    const std::size_t end = item.first + item.runs;
    change[item.first] += bytes;
    change[end > runs ? end - runs : end] -= bytes;
    if (end > runs) kept += bytes;
  }
  std::int64_t peak = 0;
  for (std::size_t run = 0; run < runs; ++run) {
    kept += change[run];
    peak = std::max(peak, kept + static_cast<std::int64_t>(choices.taken_bytes[run]));
  }
  return peak;
}

__extension__ typedef __int128 Wide;

}  // namespace

// The fewest bytes are a convex function of the capacity, made of straight pieces, each of them one schedule's. The
// bound is the largest that any price proves: what the cheapest schedule moves at that price, and what its memory costs
// more or less than the capacity. From a schedule that takes too much memory and one that does not need all, the next
// price to try is the one at which both prove the same.
std::uint64_t fewest_bytes(const Choices& choices, std::uint64_t capacity_bytes) {
  const std::int64_t peak = peak_bytes(choices);
  if (capacity_bytes >= static_cast<std::uint64_t>(peak)) return choices.always_bytes;
  const auto capacity = static_cast<std::int64_t>(capacity_bytes);
  const auto most = static_cast<std::int64_t>(*std::ranges::max_element(choices.taken_bytes));
  TERRACE_CHECK(most <= capacity);

  const auto proves = [&](const Circle::Schedule& schedule, std::int64_t price) {
    return Wide{kPriceParts} * schedule.moved_bytes + Wide{price} * (schedule.memory_bytes - capacity);
  };
  Circle::Schedule over{.moved_bytes = 0, .memory_bytes = peak};
  Circle::Schedule under{.moved_bytes = 0, .memory_bytes = most};
  for (const Item& item : choices.items) under.moved_bytes += static_cast<std::int64_t>(item.bytes);
  const Circle circle(choices);
  Wide proven = 0;
  for (int prices = 0; prices < kPricesMax; ++prices) {
    const Wide saved = Wide{kPriceParts} * (under.moved_bytes - over.moved_bytes);
    const Wide memory = over.memory_bytes - under.memory_bytes;
    // In whole parts, to the side on which less is lost by it.
    const bool up = over.memory_bytes - capacity > capacity - under.memory_bytes;
    const auto price = static_cast<std::int64_t>((up ? saved + memory - 1 : saved) / memory);
    const Circle::Schedule cheapest = circle.cheapest(price);
    proven = std::max(proven, proves(cheapest, price));
    if (proves(cheapest, price) >= std::min(proves(over, price), proves(under, price))) break;
    (cheapest.memory_bytes > capacity ? over : under) = cheapest;
  }
  return choices.always_bytes + static_cast<std::uint64_t>(proven / kPriceParts);
}

}  // namespace terrace::workload
