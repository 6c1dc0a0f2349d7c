// SPDX-License-Identifier: Apache-2.0
#include "bench/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/bytes.h"
#include "base/check.h"
#include "bench/table.h"

namespace terrace::bench {

void tell(const std::string& line) {
  std::fputs((line + "\n").c_str(), stderr);
  std::fflush(stderr);
}

Bench::Bench(Settings settings) : settings_(std::move(settings)) {}

void Bench::say(const std::string& what) const { tell(fmt::format("[{:6.1f} s] {}", seconds_since(begin_), what)); }

void Bench::add(Row row) {
  if (!std::isfinite(ratio(row))) {
    say(fmt::format("{}: not measured: {} {} against a reference of {}", row.bench, figure(row.value), row.unit,
                    figure(row.reference_value)));
    ++unmeasured_;
    return;
  }
  const std::lock_guard lock(mutex_);
  TERRACE_CHECK(std::ranges::none_of(rows_, [&](const Row& other) { return other.bench == row.bench; }));
  const auto by = held_by(row);
  say(fmt::format("{}: {} (bar {}), {}", row.bench, figure(ratio(row)), figure(row.bar),
                  by ? "holds by " + *by : "missed"));
  rows_.push_back(std::move(row));
}

std::vector<Row> Bench::rows() const {
  const std::lock_guard lock(mutex_);
  return rows_;
}

Result<PrivateDaemon> Bench::start_daemon(const DaemonOptions& options) const {
  if (options.block_bytes > settings_.disk_bytes_max) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("a block file of {} is more than the {} that the suite says it takes",
                            format_bytes(options.block_bytes), format_bytes(settings_.disk_bytes_max)));
  }
  return PrivateDaemon::start(settings_.terraced, settings_.disk, options);
}

Result<std::vector<Round>> Bench::take_turns(const std::string& what, const Measure& value,
                                             const Measure& reference) const {
  const int count = rounds();
  return bench::take_turns(count, value, reference,
                           [&](int done) { say(fmt::format("{}: round {} of {}", what, done, count)); });
}

Row with(Row row, const std::vector<Round>& rounds) {
  const Compared figures = compared(rounds, row.ratio_of);
  row.value = figures.value;
  row.reference_value = figures.reference;
  row.interval = figures.interval;
  return row;
}

}  // namespace terrace::bench
