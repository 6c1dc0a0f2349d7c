// SPDX-License-Identifier: Apache-2.0
#include "sim/fuzz.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <limits>
#include <thread>

namespace terrace::sim {
namespace {

constexpr std::uint64_t kCalmEvents = 2'000;  // between two times of calm

std::uint64_t events_in(const FuzzOptions& options, std::uint64_t round) {
  return std::min(kRoundEvents, options.events - round * kRoundEvents);
}

WorldOptions world_of(const FuzzOptions& options, std::uint64_t round, std::ostream* trace) {
  WorldOptions world;
  world.seed = Random(options.seed, round).next();
  world.engine = tiers_by_seed(options.seed + round);
  world.restarts = options.restarts && round % 4 != 3;  // without, trainers release through the engine too
  world.faults = options.faults;
  world.trace = trace;
  return world;
}

FuzzResult run_round(const FuzzOptions& options, std::uint64_t round, std::uint64_t events,
                     const std::vector<std::uint64_t>* only, std::ostream* trace) {
  FuzzResult result;
  std::uint64_t event = 0;
  try {
    World world(world_of(options, round, trace));
    try {
      auto kept = only == nullptr ? std::vector<std::uint64_t>::const_iterator{} : only->begin();
      for (; event < events; ++event) {
        const bool keep = only == nullptr || (kept != only->end() && *kept == event);
        if (keep) world.event(event);
        if (keep && only != nullptr) ++kept;
        if (event % kCalmEvents == kCalmEvents - 1) world.calm();
      }
      world.finish();
    } catch (const Violation& violation) {
      result.finding = Finding{round, event, violation.what()};
    }
    result.events = event;
    result.counts = world.counts();
    result.digest = world.digest();
  } catch (const Violation& violation) {  // before the first event, or on the way out
    if (!result.finding) result.finding = Finding{round, event, violation.what()};
  }
  return result;
}

void add(Counts& sum, const Counts& more) {
  sum.deaths += more.deaths;
  sum.restarts += more.restarts;
  sum.faults += more.faults;
  sum.granted += more.granted;
  sum.refused += more.refused;
}

}  // namespace

FuzzResult fuzz(const FuzzOptions& options) {
  const ChecksAreViolations checks;
  const std::uint64_t rounds = (options.events + kRoundEvents - 1) / kRoundEvents;
  std::vector<FuzzResult> results(rounds);
  std::atomic<std::uint64_t> next = 0;
  std::atomic<std::uint64_t> first_finding = std::numeric_limits<std::uint64_t>::max();
  std::atomic<std::uint64_t> done = 0;
  const auto work = [&] {
    for (std::uint64_t round = next++; round < rounds && round < first_finding; round = next++) {
      results[round] = run_round(options, round, events_in(options, round), nullptr, nullptr);
      done += results[round].events;
      if (options.progress) options.progress(done);
      std::uint64_t first = first_finding;
      while (results[round].finding && round < first && !first_finding.compare_exchange_weak(first, round)) {
      }
    }
  };
  {
    std::vector<std::jthread> threads;
    for (std::uint32_t i = 1; i < options.threads; ++i) threads.emplace_back(work);
    work();
  }
  FuzzResult sum;
  for (const FuzzResult& result : results) {
    sum.events += result.events;
    add(sum.counts, result.counts);
    sum.digest = sum.digest * 31 + result.digest;
    sum.finding = result.finding;
    if (sum.finding) break;
  }
  return sum;
}

FuzzResult replay(const FuzzOptions& options, std::uint64_t round, std::uint64_t events,
                  const std::vector<std::uint64_t>* only, std::ostream* trace) {
  const ChecksAreViolations checks;
  return run_round(options, round, events, only, trace);
}

// Chunks are left out, half of the events first, then ever smaller ones, as long as a law still breaks.
std::vector<std::uint64_t> minimise(const FuzzOptions& options, const Finding& finding, std::uint64_t tries) {
  const ChecksAreViolations checks;
  const std::uint64_t events = std::min(finding.event + 1, kRoundEvents);
  std::vector<std::uint64_t> kept(events);
  for (std::uint64_t i = 0; i < events; ++i) kept[i] = i;
  const auto breaks = [&](const std::vector<std::uint64_t>& some) {
    return run_round(options, finding.round, some.empty() ? 0 : some.back() + 1, &some, nullptr).finding.has_value();
  };
  for (std::size_t chunk = kept.size() / 2; chunk > 0 && tries > 0; chunk /= 2) {
    for (std::size_t at = 0; at < kept.size() && tries > 0;) {
      std::vector<std::uint64_t> fewer(kept.begin(), kept.begin() + static_cast<std::ptrdiff_t>(at));
      const std::size_t after = std::min(at + chunk, kept.size());
      fewer.insert(fewer.end(), kept.begin() + static_cast<std::ptrdiff_t>(after), kept.end());
      --tries;
      if (breaks(fewer))
        kept = std::move(fewer);
      else
        at += chunk;
    }
  }
  return kept;
}

std::string list_of(const std::vector<std::uint64_t>& events) {
  std::string list;
  for (std::size_t i = 0; i < events.size();) {
    std::size_t last = i;
    while (last + 1 < events.size() && events[last + 1] == events[last] + 1) ++last;
    if (!list.empty()) list += ',';
    list += last == i ? fmt::format("{}", events[i]) : fmt::format("{}-{}", events[i], events[last]);
    i = last + 1;
  }
  return list;
}

Result<std::vector<std::uint64_t>> events_of(const std::string& list) {
  std::vector<std::uint64_t> events;
  const char* at = list.data();
  const char* end = at + list.size();
  const auto number = [&](std::uint64_t& value) {
    const auto [after, error] = std::from_chars(at, end, value);
    at = after;
    return error == std::errc{} && value < kRoundEvents;
  };
  while (at != end) {
    std::uint64_t first = 0;
    std::uint64_t last = 0;
    bool good = number(first);
    last = first;
    if (good && at != end && *at == '-') good = (++at, number(last));
    if (good && at != end) good = *at++ == ',' && at != end;
    if (!good || last < first || (!events.empty() && first <= events.back()))
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("'{}': give events in order, below {}, such as 3,8-12,99", list, kRoundEvents));
    for (std::uint64_t event = first; event <= last; ++event) events.push_back(event);
  }
  return events;
}

}  // namespace terrace::sim
