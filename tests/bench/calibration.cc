// SPDX-License-Identifier: Apache-2.0
#include "bench/calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <thread>

#include "base/bytes.h"
#include "bench/live_trainer.h"
#include "bench/tensor_set.h"

namespace terrace::bench {
namespace {

using workload::LinkSpeed;

constexpr std::uint64_t kLargeBytes = 4 * kMiB;
constexpr std::uint64_t kSmallBytes = 256 * kKiB;
constexpr int kSmallMoves = 20;  // in a round
// Before each, and between requests: the daemon has gone to sleep, as between a trainer's runs.
constexpr std::chrono::milliseconds kPause{1};
constexpr Duration kComputing = kPause;
constexpr int kWarmSteps = 2;  // in which the tier is touched for the first time
// Two directions at once that are at least so much of the two alone do not slow each other down.
constexpr double kIndependent = 0.95;

// The two places of a link.
struct Ends {
  const char* name;
  Place upper;
  Place lower;
};

// Seconds, medians.
struct Times {
  double large = 0;
  double small = 0;
};

// A link, with two large sets and a tensor that move over it. What is up is dirty, so that it moves down whole.
class LinkUnderTest {
 public:
  static Result<LinkUnderTest> make(const Bench& bench, Client& client, const Ends& ends) {
    const std::size_t count = bench.either<std::size_t>(128, 4);
    LinkUnderTest link(bench, client, ends);
    for (const SetShape& shape : {SetShape{fmt::format("{} a", ends.name), count, kLargeBytes},
                                  SetShape{fmt::format("{} b", ends.name), count, kLargeBytes},
                                  SetShape{fmt::format("{} small", ends.name), 1, kSmallBytes}}) {
      auto set = TensorSet::make(client, shape);
      if (!set) return std::unexpected(set.error());
      link.sets_.push_back(std::move(*set));
      if (const auto down = client.swap_out(link.sets_.back().tensors(), ends.lower); !down)
        return std::unexpected(down.error());
    }
    return link;
  }

  Result<LinkSpeed> measure(double request) {
    Times in;
    Times out;
    if (const auto moved = move_large(in, out); !moved) return std::unexpected(moved.error());
    if (const auto moved = move_small(in, out); !moved) return std::unexpected(moved.error());
    const auto both = both_at_once();
    if (!both) return std::unexpected(both.error());
    for (const TensorSet& set : sets_)
      if (const auto right = set.check(); !right) return std::unexpected(right.error());
    return fitted(in, out, *both, request);
  }

 private:
  LinkUnderTest(const Bench& bench, Client& client, const Ends& ends) : bench_(&bench), client_(&client), ends_(ends) {}

  Result<double> up(const TensorSet& set) {
    const auto begin = std::chrono::steady_clock::now();
    const auto leases = client_->acquire(set.tensors(), {.place = ends_.upper, .mode = Mode::kWrite});
    if (!leases) return std::unexpected(leases.error());
    return seconds_since(begin);
  }

  Result<double> down(const TensorSet& set) {
    const auto begin = std::chrono::steady_clock::now();
    if (const auto moved = client_->swap_out(set.tensors(), ends_.lower); !moved) return std::unexpected(moved.error());
    return seconds_since(begin);
  }

  // Up and down so many times, after `warm` more that are not counted.
  Result<void> move(const TensorSet& set, int warm, int count, std::chrono::milliseconds pause, double& in,
                    double& out) {
    std::vector<double> ups;
    std::vector<double> downs;
    for (int i = 0; i < warm + count; ++i) {
      std::this_thread::sleep_for(pause);
      const auto rose = up(set);
      if (!rose) return std::unexpected(rose.error());
      std::this_thread::sleep_for(pause);
      const auto fell = down(set);
      if (!fell) return std::unexpected(fell.error());
      if (i < warm) continue;
      ups.push_back(*rose);
      downs.push_back(*fell);
    }
    in = median(std::move(ups));
    out = median(std::move(downs));
    return {};
  }

  Result<void> move_large(Times& in, Times& out) {
    bench_->say(fmt::format("{}: one direction at a time", ends_.name));
    return move(sets_[0], 2, bench_->rounds(), {}, in.large, out.large);
  }
  Result<void> move_small(Times& in, Times& out) { return move(sets_[2], 2, kSmallMoves, kPause, in.small, out.small); }

  // Seconds until one set is down and the other is up, which begin at once.
  Result<double> both_at_once() {
    bench_->say(fmt::format("{}: both directions at once", ends_.name));
    std::array<const TensorSet*, 2> sets{&sets_[0], &sets_[1]};
    if (const auto rose = up(*sets[1]); !rose) return rose;  // both have been up, and the first one is
    if (const auto fell = down(*sets[1]); !fell) return fell;
    if (const auto rose = up(*sets[0]); !rose) return rose;
    std::vector<double> took;
    for (int i = 0; i < bench_->rounds() + 1; ++i, std::swap(sets[0], sets[1])) {
      const auto begin = std::chrono::steady_clock::now();
      auto falls = client_->swap_out_async(sets[0]->tensors(), ends_.lower);
      auto rises = client_->acquire_async(sets[1]->tensors(), {.place = ends_.upper, .mode = Mode::kWrite});
      const auto fell = falls.wait(kTimeoutDefault);
      if (!fell) return std::unexpected(fell.error());
      const auto rose = rises.wait(kTimeoutDefault);
      if (!rose) return std::unexpected(rose.error());
      took.push_back(seconds_since(begin));
    }
    return median(std::move(took));
  }

  // A line through two points, and what is left of both directions' speed where they are at work together.
  LinkSpeed fitted(const Times& in, const Times& out, double both, double request) const {
    const auto large = static_cast<double>(sets_[0].shape().total());
    const auto small = static_cast<double>(sets_[2].shape().total());
    const auto speed = [&](const Times& times) { return (large - small) / std::max(1e-9, times.large - times.small); };
    const auto latency = [&](const Times& times) { return times.small - small / speed(times) - request; };
    LinkSpeed link{.in_bytes_per_s = static_cast<std::uint64_t>(speed(in)),
                   .out_bytes_per_s = static_cast<std::uint64_t>(speed(out)),
                   .latency = std::chrono::round<Duration>(
                       std::chrono::duration<double>(std::max(0.0, (latency(in) + latency(out)) / 2)))};
    // Together until the faster one is through, and then the other alone.
    const double faster = large / std::max(speed(in), speed(out));
    const double slower = large / std::min(speed(in), speed(out));
    const double share = faster / std::max(1e-9, both - (slower - faster));
    if (share < kIndependent) link.both_bytes_per_s = static_cast<std::uint64_t>(share * (speed(in) + speed(out)));
    return link;
  }

  const Bench* bench_;
  Client* client_;
  Ends ends_;
  std::vector<TensorSet> sets_;
};

// A trainer's step that moves nothing: each run's tensor is born in it, and dead after it.
workload::Workload births(std::size_t runs) {
  workload::Workload made{.name = "births", .source = "calibration", .tensors = {}, .runs = {}, .steps = {}};
  for (std::size_t at = 0; at < runs; ++at) {
    const auto tensor = static_cast<workload::TensorId>(at);
    made.tensors.push_back({.bytes = kSmallBytes, .tensor_class = workload::Class::kAct});
    made.runs.push_back({.name = "birth", .compute = kComputing, .read = {}, .write = {tensor}, .free = {tensor}});
  }
  made.steps.push_back({.kind = workload::StepKind::kTrain, .end = runs});
  return made;
}

// Seconds of a request as a trainer asks between two pieces of compute: for room, and to give it up. In a session of
// its own, which marks steps.
Result<double> request_time(const Bench& bench, const PrivateDaemon& daemon) {
  bench.say("requests that move nothing");
  auto client = daemon.connect();
  if (!client) return std::unexpected(client.error());
  const auto runs = bench.either<std::size_t>(256, 16);
  const workload::Workload workload = births(runs);
  auto trainer = LiveTrainer::make(*client, workload, Touch::kSamples);
  if (!trainer) return std::unexpected(trainer.error());
  std::vector<double> took;
  for (int i = 0; i < kWarmSteps + bench.rounds(); ++i) {
    const auto step = trainer->step();
    if (!step) return std::unexpected(step.error());
    if (i < kWarmSteps) continue;
    const std::chrono::duration<double> asking = step->makespan - step->compute;
    took.push_back(asking.count() / static_cast<double>(2 * runs));
  }
  return median(std::move(took));
}

}  // namespace

Result<workload::Node> calibrate(const Bench& bench) {
  const auto bytes = [&](std::uint64_t full) { return bench.either(full, full / 32); };
  auto daemon = bench.start_daemon(
      {.device_bytes = bytes(2 * kGiB), .memory_bytes = bytes(3 * kGiB), .block_bytes = bytes(kCalibrationDiskBytes)});
  if (!daemon) return std::unexpected(daemon.error());
  const auto request = request_time(bench, *daemon);
  if (!request) return std::unexpected(request.error());
  auto client = daemon->connect();
  if (!client) return std::unexpected(client.error());
  workload::Node node;
  node.name = "this machine";
  node.request_latency = std::chrono::round<Duration>(std::chrono::duration<double>(*request));
  for (const auto& [ends, speed] : {std::pair(Ends{"hbm", Place::device(0), Place::host()}, &node.hbm),
                                    std::pair(Ends{"block", Place::host(), Place::block()}, &node.block)}) {
    auto link = LinkUnderTest::make(bench, *client, ends);
    if (!link) return std::unexpected(link.error());
    const auto measured = link->measure(*request);
    if (!measured) return std::unexpected(measured.error());
    *speed = *measured;
  }
  return node;
}

}  // namespace terrace::bench
