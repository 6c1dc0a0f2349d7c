// SPDX-License-Identifier: Apache-2.0
#include "timetable/schedule.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <ostream>
#include <string>

namespace terrace::timetable {
namespace {

std::string microseconds(std::int64_t time_ns) { return fmt::format("{}.{:03}", time_ns / 1000, time_ns % 1000); }

}  // namespace

std::int64_t on_link_ns(std::uint64_t bytes, std::uint64_t bytes_per_s) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::int64_t>((static_cast<Wide>(bytes) * 1'000'000'000 + bytes_per_s - 1) / bytes_per_s);
}

void write(std::ostream& out, const Schedule& schedule, std::string_view workload, std::string_view node,
           std::int64_t lower_bound_ns) {
  const auto ids = [&](Tier tier) { return fmt::join(schedule.at_start[static_cast<std::size_t>(tier)], ","); };
  out << fmt::format(R"({{"schedule":"{}","node":"{}","makespan_us":{},"lower_bound_us":{})", workload, node,
                     microseconds(schedule.makespan_ns), microseconds(lower_bound_ns))
      << fmt::format(R"(,"hbm":[{}],"host":[{}],"block":[{}]}})", ids(Tier::kHbm), ids(Tier::kHost), ids(Tier::kBlock))
      << '\n';
  std::multimap<std::pair<std::int64_t, int>, std::string> lines;  // by time and kind, and else as they come
  for (std::size_t run = 0; run < schedule.runs_ns.size(); ++run)
    lines.emplace(std::pair(schedule.runs_ns[run], 1),
                  fmt::format(R"({{"run":{},"start_us":{}}})", run, microseconds(schedule.runs_ns[run])));
  for (const Move& move : schedule.moves)
    lines.emplace(std::pair(move.begin_ns, 2),
                  fmt::format(R"({{"move":{},"from":"{}","to":"{}","start_us":{}}})", move.tensor, name(move.from),
                              name(move.to), microseconds(move.begin_ns)));
  for (const Drop& drop : schedule.drops)
    lines.emplace(std::pair(drop.at_ns, 0), fmt::format(R"({{"drop":{},"at":"{}","us":{}}})", drop.tensor,
                                                        name(drop.at), microseconds(drop.at_ns)));
  for (const auto& [when, line] : lines) out << line << '\n';
}

}  // namespace terrace::timetable
