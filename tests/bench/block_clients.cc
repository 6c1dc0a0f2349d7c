// SPDX-License-Identifier: Apache-2.0
#include "bench/block_clients.h"

#include <algorithm>
#include <barrier>
#include <optional>
#include <thread>

#include "bench/counters.h"
#include "bench/tensor_set.h"

namespace terrace::bench {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;
constexpr double kGiB = 1ull << 30;
constexpr std::size_t kClients = 8;
constexpr std::uint64_t kTensorBytes = kMiB;
constexpr double kFairBar = 0.98;
constexpr double kSumBar = 0.97;

using Clock = std::chrono::steady_clock;

// When each tensor of a client was there, and an error if one came not.
struct Arrivals {
  Clock::time_point begin;
  std::vector<Clock::time_point> at{};
  Result<void> result{};
};

// Everything is asked for at once, a request a tensor.
Arrivals bring_all(Client& client, const TensorSet& set) {
  Arrivals arrivals{.begin = Clock::now()};
  std::vector<Pending<void>> coming;
  for (const Tensor& tensor : set.tensors())
    coming.push_back(client.swap_in_async(std::span(&tensor, 1), Place::host()));
  for (Pending<void>& each : coming) {
    if (auto done = each.wait(kTimeoutDefault); !done) {
      arrivals.result = std::move(done);
      return arrivals;
    }
    arrivals.at.push_back(Clock::now());
  }
  return arrivals;
}

class Clients {
 public:
  static Result<Clients> make(const PrivateDaemon& daemon, std::size_t tensors_each) {
    Clients made;
    made.clients_.reserve(kClients);  // the sets hold references
    for (std::size_t index = 0; index < kClients; ++index) {
      auto client = daemon.connect({.guarantees = {{Place::host(), tensors_each * kTensorBytes + 4 * kMiB}}});
      if (!client) return std::unexpected(client.error());
      made.clients_.push_back(std::move(*client));
      auto set = TensorSet::make(made.clients_.back(), {.name = "set", .count = tensors_each, .bytes = kTensorBytes});
      if (!set) return std::unexpected(set.error());
      made.sets_.push_back(std::move(*set));
    }
    return made;
  }

  std::uint64_t bytes() const { return kClients * sets_[0].shape().total(); }

  struct Together {
    double gib_per_second = 0;
    // Jain's index of what each has got when the first has everything: since the last of them was served its first
    // tensor, and since the first request.
    double fairness = 0;
    double fairness_from_start = 0;
  };

  // All eight at the same time.
  Result<Together> together() {
    if (const auto gone = down(); !gone) return std::unexpected(gone.error());
    std::vector<Arrivals> arrivals(kClients);
    std::barrier start(kClients + 1);
    std::vector<std::jthread> threads;
    for (std::size_t index = 0; index < kClients; ++index)
      threads.emplace_back([&, index] {
        start.arrive_and_wait();
        arrivals[index] = bring_all(clients_[index], sets_[index]);
      });
    start.arrive_and_wait();
    threads.clear();
    auto begin = Clock::time_point::max();
    auto last = Clock::time_point::min();
    auto all_served = Clock::time_point::min();
    auto first_done = Clock::time_point::max();
    for (const Arrivals& each : arrivals) {
      if (!each.result) return std::unexpected(each.result.error());
      begin = std::min(begin, each.begin);
      last = std::max(last, each.at.back());
      all_served = std::max(all_served, each.at.front());
      first_done = std::min(first_done, each.at.back());
    }
    const auto fairness_since = [&](Clock::time_point since) {
      std::vector<double> parts;
      for (const Arrivals& each : arrivals)
        parts.push_back(static_cast<double>(
            std::ranges::count_if(each.at, [&](Clock::time_point at) { return at >= since && at <= first_done; })));
      return jain(parts);
    };
    if (const auto right = check(); !right) return std::unexpected(right.error());
    return Together{static_cast<double>(bytes()) / kGiB / std::chrono::duration<double>(last - begin).count(),
                    fairness_since(all_served), fairness_since(begin)};
  }

 private:
  Result<void> down() {
    for (std::size_t index = 0; index < kClients; ++index)
      if (const auto gone = clients_[index].swap_out(sets_[index].tensors()); !gone) return gone;
    return {};
  }
  Result<void> check() const {
    for (const TensorSet& set : sets_)
      if (const auto right = set.check(); !right) return right;
    return {};
  }

  std::vector<Client> clients_;
  std::vector<TensorSet> sets_;
};

// The same bytes by a client that is alone.
Result<double> alone(Client& client, const TensorSet& set) {
  if (const auto gone = client.swap_out(set.tensors()); !gone) return std::unexpected(gone.error());
  const auto begin = Clock::now();
  const Arrivals arrivals = bring_all(client, set);
  const double seconds = seconds_since(begin);
  if (!arrivals.result) return std::unexpected(arrivals.result.error());
  if (const auto right = set.check(); !right) return std::unexpected(right.error());
  return static_cast<double>(set.shape().total()) / kGiB / seconds;
}

}  // namespace

double jain(const std::vector<double>& parts) {
  double sum = 0;
  double squares = 0;
  for (const double part : parts) {
    sum += part;
    squares += part * part;
  }
  return squares == 0 ? 0 : sum * sum / (static_cast<double>(parts.size()) * squares);
}

Result<void> measure_clients(Bench& bench) {
  const std::size_t each = bench.either<std::size_t>(192, 96);
  const std::uint64_t all = kClients * each * kTensorBytes;
  // Both have their tensors all the while, and room to have them in memory at the same time.
  const auto daemon = bench.start_daemon({.memory_bytes = 2 * all + 512 * kMiB, .block_bytes = 2 * all + 256 * kMiB});
  if (!daemon) return std::unexpected(daemon.error());
  auto single = daemon->connect({.guarantees = {{Place::host(), all + 64 * kMiB}}});
  if (!single) return std::unexpected(single.error());
  const auto set = TensorSet::make(*single, {.name = "alone", .count = kClients * each, .bytes = kTensorBytes});
  if (!set) return std::unexpected(set.error());
  auto clients = Clients::make(*daemon, each);
  if (!clients) return std::unexpected(clients.error());

  std::vector<double> fairness;
  std::vector<double> fairness_from_start;
  std::vector<double> cpu;
  std::vector<double> alone_cpu;
  const auto counted = [&](std::vector<double>& to, const auto& work) {
    const Counters before = counters_of_process(daemon->pid());
    auto done = work();
    to.push_back(static_cast<double>((counters_of_process(daemon->pid()) - before).cpu_ns));
    return done;
  };
  const Measure value = [&]() -> Result<double> {
    const auto together = counted(cpu, [&] { return clients->together(); });
    if (!together) return std::unexpected(together.error());
    fairness.push_back(together->fairness);
    fairness_from_start.push_back(together->fairness_from_start);
    return together->gib_per_second;
  };
  const Measure reference = [&] { return counted(alone_cpu, [&] { return alone(*single, *set); }); };
  if (const auto warm = value(); !warm) return std::unexpected(warm.error());
  for (std::vector<double>* warmed : {&fairness, &fairness_from_start, &cpu}) warmed->clear();
  const auto rounds = bench.take_turns("eight clients", value, reference);
  if (!rounds) return std::unexpected(rounds.error());
  bench.add({.bench = "block.clients_fair",
             .path = "eight clients on one block link: Jain's index of what each gets while all are served",
             .value = median(fairness),
             .unit = "index",
             .ratio_of = RatioOf::kValue,
             .bar = kFairBar,
             .counts = {{.name = "Jain's index from the first request on",
                         .value = median(fairness_from_start),
                         .better = Better::kHigher}}});
  bench.add(with(
      {.bench = "block.clients_sum",
       .path = "eight clients on one block link, together",
       .unit = "GiB/s",
       .reference = "one client, the same bytes",
       .bar = kSumBar,
       .counts = {{.name = "Jain's index", .value = median(fairness), .limit = kFairBar, .better = Better::kHigher},
                  {.name = "times one client's CPU in the daemon, out and in",
                   .value = median(cpu) / median(alone_cpu),
                   .limit = 1 / kSumBar}}},
      *rounds));
  return {};
}

}  // namespace terrace::bench
