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

constexpr std::uint64_t kSmallBytes = 256 * kKiB;
constexpr std::size_t kMoves = 20;  // of one tensor at a time
// Before each, and between requests: the daemon has gone to sleep, as between a trainer's runs.
constexpr std::chrono::milliseconds kPause{1};
constexpr Duration kComputing = kPause;
constexpr std::size_t kStripes = 32;  // that fill a tier
constexpr int kWarmSteps = 2;         // in which the tier is touched for the first time
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
  double lone = 0;  // one tensor of the large set
};

// A link, with two sets of large tensors and one of small ones that move over it. What is up is dirty, so that it moves
// down whole.
class LinkUnderTest {
 public:
  static Result<LinkUnderTest> make(const Bench& bench, Client& client, const Ends& ends) {
    const std::size_t count = bench.either<std::size_t>(64, 2);
    LinkUnderTest link(bench, client, ends);
    for (const SetShape& shape : {SetShape{fmt::format("{} a", ends.name), count, workload::kDrainBytes},
                                  SetShape{fmt::format("{} b", ends.name), count, workload::kDrainBytes},
                                  SetShape{fmt::format("{} small", ends.name), kMoves, kSmallBytes}}) {
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
    if (const auto moved = move_lone(in, out); !moved) return std::unexpected(moved.error());
    const auto both = both_at_once();
    if (!both) return std::unexpected(both.error());
    for (const TensorSet& set : sets_)
      if (const auto right = set.check(); !right) return std::unexpected(right.error());
    return fitted(in, out, *both, request);
  }

 private:
  LinkUnderTest(const Bench& bench, Client& client, const Ends& ends) : bench_(&bench), client_(&client), ends_(ends) {}

  Result<double> up(std::span<const Tensor> tensors) {
    const auto begin = std::chrono::steady_clock::now();
    const auto leases = client_->acquire(tensors, {.place = ends_.upper, .mode = Mode::kWrite});
    if (!leases) return std::unexpected(leases.error());
    return seconds_since(begin);
  }

  Result<double> down(std::span<const Tensor> tensors) {
    const auto begin = std::chrono::steady_clock::now();
    if (const auto moved = client_->swap_out(tensors, ends_.lower); !moved) return std::unexpected(moved.error());
    return seconds_since(begin);
  }

  // A set up and down, again and again; two rounds before touch the memory.
  Result<void> move_large(Times& in, Times& out) {
    bench_->say(fmt::format("{}: one direction at a time", ends_.name));
    std::vector<double> ups;
    std::vector<double> downs;
    for (int i = 0; i < 2 + bench_->rounds(); ++i) {
      const auto rose = up(sets_[0].tensors());
      if (!rose) return std::unexpected(rose.error());
      const auto fell = down(sets_[0].tensors());
      if (!fell) return std::unexpected(fell.error());
      if (i < 2) continue;
      ups.push_back(*rose);
      downs.push_back(*fell);
    }
    in.large = median(std::move(ups));
    out.large = median(std::move(downs));
    return {};
  }

  // A set's tensors up, each by itself, and then down; so that none of them is in a cache. After as many that are not
  // counted.
  Result<void> move_each(const TensorSet& set, double& in, double& out) {
    const std::span tensors = std::span(set.tensors()).first(std::min(kMoves, set.tensors().size()));
    for (int round = 0; round < 2; ++round) {
      for (const auto& [move, time] : {std::pair(&LinkUnderTest::up, &in), std::pair(&LinkUnderTest::down, &out)}) {
        std::vector<double> took;
        for (std::size_t at = 0; at < tensors.size(); ++at) {
          std::this_thread::sleep_for(kPause);
          const auto moved = (this->*move)(tensors.subspan(at, 1));
          if (!moved) return std::unexpected(moved.error());
          took.push_back(*moved);
        }
        *time = median(std::move(took));
      }
    }
    return {};
  }
  Result<void> move_lone(Times& in, Times& out) {
    bench_->say(fmt::format("{}: one tensor at a time", ends_.name));
    if (const auto moved = move_each(sets_[2], in.small, out.small); !moved) return moved;
    return move_each(sets_[0], in.lone, out.lone);
  }

  // Seconds until one set is down and the other is up, which begin at once.
  Result<double> both_at_once() {
    bench_->say(fmt::format("{}: both directions at once", ends_.name));
    std::array<const TensorSet*, 2> sets{&sets_[0], &sets_[1]};
    if (const auto rose = up(sets[1]->tensors()); !rose) return rose;  // both have been up, and the first one is
    if (const auto fell = down(sets[1]->tensors()); !fell) return fell;
    if (const auto rose = up(sets[0]->tensors()); !rose) return rose;
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

  // A line through two points; what a tensor alone takes beyond it to be read from the disk; and what is left of both
  // directions' speed where they are at work together.
  LinkSpeed fitted(const Times& in, const Times& out, double both, double request) const {
    const auto large = static_cast<double>(sets_[0].shape().total());
    const auto small = static_cast<double>(kSmallBytes);
    const auto speed = [&](const Times& times) { return (large - small) / std::max(1e-9, times.large - times.small); };
    const auto latency = [&](const Times& times) { return times.small - small / speed(times) - request; };
    const double drain = in.lone - static_cast<double>(workload::kDrainBytes) / speed(in) - latency(in) - request;
    const auto positive = [](double seconds) {
      return std::chrono::round<Duration>(std::chrono::duration<double>(std::max(0.0, seconds)));
    };
    LinkSpeed link{.in_bytes_per_s = static_cast<std::uint64_t>(speed(in)),
                   .out_bytes_per_s = static_cast<std::uint64_t>(speed(out)),
                   .latency = positive((latency(in) + latency(out)) / 2)};
    if (ends_.lower == Place::block()) link.in_drain = positive(drain);
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

// Bytes a second from one place of a tier to another, as a copy moves that lies in the way. The tier is full of
// stripes, and every second one goes; what is twice as large then has room once one of the others has moved.
Result<std::uint64_t> within_speed(const Bench& bench, Client& client, Place place, std::uint64_t capacity,
                                   double request) {
  bench.say(fmt::format("copies within {}", place == Place::host() ? "memory" : "the device"));
  const std::uint64_t bytes = capacity / kStripes;
  std::vector<TensorSpec> specs;
  for (std::size_t at = 0; at < kStripes; ++at) specs.push_back({.name = fmt::format("stripe {}", at), .bytes = bytes});
  auto stripes = client.create(specs);
  if (!stripes) return std::unexpected(stripes.error());
  if (const auto full = client.acquire(*stripes, {.place = place, .mode = Mode::kOverwrite}); !full)
    return std::unexpected(full.error());
  std::vector<Tensor> all;
  for (std::size_t at = 0; at < kStripes; at += 2) all.push_back((*stripes)[at]);
  if (const auto gone = client.destroy(all); !gone) return std::unexpected(gone.error());
  all.clear();
  for (std::size_t at = 1; at < kStripes; at += 2) all.push_back((*stripes)[at]);
  std::vector<double> took;
  for (std::size_t at = 0; at < kStripes / 4; ++at) {
    const auto wide = client.create(TensorSpec{.name = fmt::format("wide {}", at), .bytes = 2 * bytes});
    if (!wide) return std::unexpected(wide.error());
    std::this_thread::sleep_for(kPause);
    const auto begin = std::chrono::steady_clock::now();
    if (const auto lease = client.acquire(*wide, {.place = place, .mode = Mode::kOverwrite}); !lease)
      return std::unexpected(lease.error());
    took.push_back(seconds_since(begin));
    all.push_back(*wide);
  }
  if (const auto gone = client.destroy(all); !gone) return std::unexpected(gone.error());
  return static_cast<std::uint64_t>(static_cast<double>(bytes) / std::max(1e-9, median(std::move(took)) - request));
}

// In small tiers of their own.
Result<void> measure_within(const Bench& bench, workload::Node& node) {
  const std::uint64_t bytes = bench.either<std::uint64_t>(kStripes * workload::kDrainBytes, kStripes * kSmallBytes);
  auto daemon = bench.start_daemon({.device_bytes = bytes, .memory_bytes = bytes, .block_bytes = 4 * bytes});
  if (!daemon) return std::unexpected(daemon.error());
  auto client = daemon->connect();
  if (!client) return std::unexpected(client.error());
  const double request = std::chrono::duration<double>(node.request_latency).count();
  for (const auto& [place, speed] : {std::pair(Place::device(0), &node.hbm_within_bytes_per_s),
                                     std::pair(Place::host(), &node.host_within_bytes_per_s)}) {
    const auto measured = within_speed(bench, *client, place, bytes, request);
    if (!measured) return std::unexpected(measured.error());
    *speed = *measured;
  }
  return {};
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
  if (const auto measured = measure_within(bench, node); !measured) return std::unexpected(measured.error());
  return node;
}

}  // namespace terrace::bench
