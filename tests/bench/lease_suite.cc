// SPDX-License-Identifier: Apache-2.0
// A hit: lease and release of what is resident, in shared memory. Alone against a gRPC echo, and on every core at once
// against one core.
#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <set>
#include <thread>

#include "base/bytes.h"
#include "base/check.h"
#include "bench/contents.h"
#include "bench/counters.h"
#include "bench/grpc_echo.h"
#include "bench/suite.h"
#include "shm/layout.h"

namespace terrace::bench {
namespace {

constexpr std::uint64_t kTensorBytes = 256 * kKiB;
constexpr std::uint64_t kBatch = 64;  // hits that the clock is read around: reading it costs a third of one
constexpr std::uint64_t kTraced = 1000;
constexpr double kCpuLimit = 1 / 0.9;  // of a hit beside others, in hits alone: what the bar of 0.9 allows

Result<void> hit(Client& client, const Tensor& tensor, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) {
    const Result<Lease> lease = client.acquire(tensor);
    if (!lease) return std::unexpected(lease.error());
  }
  return {};
}

// One that holds its own content.
Result<Tensor> create(Client& client, std::uint64_t number) {
  auto tensor = client.create({.name = fmt::format("resident {}", number), .bytes = kTensorBytes});
  if (!tensor) return tensor;
  auto lease = client.acquire(*tensor, {.mode = Mode::kOverwrite});
  if (!lease) return std::unexpected(lease.error());
  fill(lease->writable_bytes(), number, 1);
  return tensor;
}

Result<void> check_bytes(Client& client, const Tensor& tensor, std::uint64_t number) {
  const auto lease = client.acquire(tensor);
  if (!lease) return std::unexpected(lease.error());
  return check(lease->bytes(), number, 1);
}

// The median over batches of a hit's nanoseconds.
Result<double> median_hit(Client& client, const Tensor& tensor, std::uint64_t batches) {
  std::vector<double> took;
  took.reserve(batches);
  for (std::uint64_t i = 0; i < batches; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    if (const auto done = hit(client, tensor, kBatch); !done) return std::unexpected(done.error());
    took.push_back(seconds_since(begin) * 1e9 / kBatch);
  }
  return median(std::move(took));
}

Result<std::uint64_t> calls_of_hits(const PrivateDaemon& daemon) {
  std::optional<Client> client;
  Tensor tensor;
  const auto prepare = [&]() -> int {
    auto connected = daemon.connect({.label = "traced"});
    if (!connected) return 1;
    client = std::move(*connected);
    auto created = create(*client, 1);
    if (!created || !hit(*client, *created, kBatch)) return 2;
    tensor = *created;
    return 0;
  };
  return count_system_calls(prepare, [&] { return hit(*client, tensor, kTraced) ? 0 : 3; });
}

Result<void> run_alone(Bench& bench, const PrivateDaemon& daemon, Client& client, const Tensor& tensor) {
  auto echo = GrpcEcho::start();
  if (!echo) return std::unexpected(echo.error());
  const auto batches = bench.either<std::uint64_t>(16'000, 2'000);
  const auto echoes = bench.either<std::size_t>(4'000, 500);
  const Measure hits = [&] { return median_hit(client, tensor, batches); };
  const Measure calls = [&]() -> Result<double> {
    auto took = (*echo)->call(echoes);
    if (!took) return std::unexpected(took.error());
    return median(std::move(*took));
  };
  for (const Measure* warm : {&hits, &calls})
    if (const auto warmed = (*warm)(); !warmed) return std::unexpected(warmed.error());
  const Instructions instructions;
  const Counters before = counters_of_this_thread();
  if (const auto done = hit(client, tensor, batches * kBatch); !done) return done;
  const auto cpu_ns = static_cast<double>((counters_of_this_thread() - before).cpu_ns);
  const auto counted = instructions.count();
  const auto system_calls = calls_of_hits(daemon);
  if (!system_calls) return std::unexpected(system_calls.error());
  const auto rounds = bench.take_turns("lease.hit", hits, calls);
  if (!rounds) return std::unexpected(rounds.error());

  const double per_hit = static_cast<double>(*system_calls) / static_cast<double>(kTraced);
  std::vector<Count> counts{{.name = "system calls a lease", .value = per_hit, .limit = 0},
                            {.name = "ns of CPU a lease", .value = cpu_ns / static_cast<double>(batches * kBatch)}};
  if (counted)
    counts.push_back({.name = "instructions a lease",
                      .value = static_cast<double>(*counted) / static_cast<double>(batches * kBatch)});
  const Row row = with({.bench = "lease.hit",
                        .path = "lease and release of a resident tensor, one thread, p50",
                        .unit = "ns",
                        .reference = "unary gRPC echo over a Unix socket, p50",
                        .ratio_of = RatioOf::kReferenceOverValue,
                        .bar = 500,
                        .better = Better::kHigher,
                        .counts = counts},
                       *rounds);
  bench.add(row);
  bench.add({.bench = "lease.hit_p50",
             .path = "the same, by itself",
             .value = row.value,
             .unit = "ns",
             .ratio_of = RatioOf::kValue,
             .bar = 100,
             .better = Better::kLower,
             .counts = counts});
  bench.add({.bench = "lease.system_calls",
             .path = "system calls of a lease and release of a resident tensor",
             .value = per_hit,
             .unit = "calls",
             .ratio_of = RatioOf::kValue,
             .bar = 0,
             .better = Better::kLower});
  return {};
}

// What a thread on each of some processors did, each with its own tensor.
struct Together {
  double rate = 0;            // hits a second, of all
  double cpu_ns_per_hit = 0;  // of one, on average
};

Result<Together> hit_together(Client& client, std::span<const Tensor> tensors, const std::vector<int>& processors,
                              std::uint64_t count) {
  std::vector<double> rates(processors.size());
  std::vector<std::uint64_t> cpu_ns(processors.size());
  std::vector<Result<void>> results(processors.size());
  std::barrier together(static_cast<std::ptrdiff_t>(processors.size()));
  std::atomic<bool> over = false;  // the first to be done ends it, so that nobody is measured alone
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < processors.size(); ++i) {
    threads.emplace_back([&, i] {
      cpu_set_t set;
      CPU_ZERO(&set);
      CPU_SET(processors[i], &set);
      ::pthread_setaffinity_np(::pthread_self(), sizeof(set), &set);
      results[i] = hit(client, tensors[i], kBatch);  // its access log is lent
      together.arrive_and_wait();
      const Counters before = counters_of_this_thread();
      const auto begin = std::chrono::steady_clock::now();
      std::uint64_t done = 0;
      for (; results[i] && done < count && !over.load(std::memory_order_relaxed); done += kBatch)
        results[i] = hit(client, tensors[i], kBatch);
      rates[i] = static_cast<double>(done) / seconds_since(begin);
      over = true;
      cpu_ns[i] = (counters_of_this_thread() - before).cpu_ns / std::max<std::uint64_t>(done, 1);
    });
  }
  threads.clear();
  Together sum;
  for (std::size_t i = 0; i < processors.size(); ++i) {
    if (!results[i]) return std::unexpected(results[i].error());
    sum.rate += rates[i];
    sum.cpu_ns_per_hit += static_cast<double>(cpu_ns[i]) / static_cast<double>(processors.size());
  }
  return sum;
}

// One of each core: its hyperthreads share what a lease needs.
std::vector<int> own_cores() {
  std::set<std::string> seen;
  cpu_set_t set;
  CPU_ZERO(&set);
  ::sched_getaffinity(0, sizeof(set), &set);
  std::vector<int> cores;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (!CPU_ISSET(i, &set)) continue;
    std::string siblings = std::to_string(i);  // alone, where the kernel does not say
    std::getline(std::ifstream(fmt::format("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", i)),
                 siblings);
    if (seen.insert(siblings).second) cores.push_back(i);
  }
  return cores;
}

// Leases of this process's sessions that are in no access log, from the sessions' regions as they are mapped here.
std::uint64_t unlogged_leases() {
  std::uint64_t sum = 0;
  bool found = false;
  std::ifstream mappings("/proc/self/maps");
  for (std::string line; std::getline(mappings, line);) {
    std::uintptr_t begin = 0;
    std::uint64_t offset = 0;
    if (line.find("/memfd:terrace-session") == std::string::npos) continue;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%*x %*s %" SCNx64, &begin, &offset) != 2 || offset != 0) continue;
    found = true;
    sum += reinterpret_cast<const shm::RegionHeader*>(begin)->unlogged.load(std::memory_order_relaxed);
  }
  TERRACE_CHECK(found);
  return sum;
}

Result<void> run_together(Bench& bench, Client& client) {
  std::vector<int> processors = own_cores();
  // A session has so many access logs, of which this thread has one; what is beyond would only be counted.
  constexpr std::size_t kTogetherMax = shm::kLogCount - 1;
  const std::string which =
      processors.size() > kTogetherMax
          ? fmt::format("{} of {} cores, as many as have access logs,", kTogetherMax, processors.size())
          : fmt::format("{} cores", processors.size());
  processors.resize(std::min(processors.size(), kTogetherMax));
  std::vector<Tensor> tensors;
  for (std::size_t i = 0; i < processors.size(); ++i) {
    auto tensor = create(client, 100 + i);
    if (!tensor) return std::unexpected(tensor.error());
    tensors.push_back(*tensor);
  }
  const auto count = bench.either<std::uint64_t>(1 << 22, 1 << 19);
  std::vector<double> alone_ns;
  std::vector<double> together_ns;
  const Measure alone = [&]() -> Result<double> {
    const auto one = hit_together(client, tensors, {processors[0]}, count);
    if (!one) return std::unexpected(one.error());
    alone_ns.push_back(one->cpu_ns_per_hit);
    return one->rate * static_cast<double>(processors.size());
  };
  const Measure all = [&]() -> Result<double> {
    const auto sum = hit_together(client, tensors, processors, count);
    if (!sum) return std::unexpected(sum.error());
    together_ns.push_back(sum->cpu_ns_per_hit);
    return sum->rate;
  };
  const auto rounds = bench.take_turns("lease.all_cores", all, alone);
  if (!rounds) return std::unexpected(rounds.error());
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (const auto right = check_bytes(client, tensors[i], 100 + i); !right) return right;
  const double cpu = median(together_ns);
  bench.add(
      with({.bench = "lease.all_cores",
            .path = fmt::format("the same from {} at once, different tensors, access logs on", which),
            .unit = "leases/s",
            .reference = "one thread x cores",
            .bar = 0.9,
            .better = Better::kHigher,
            .counts =
                {{.name = "times the CPU of a lease alone", .value = cpu / median(alone_ns), .limit = kCpuLimit},
                 {.name = "leases that no access log has", .value = static_cast<double>(unlogged_leases()), .limit = 0},
                 {.name = "ns of CPU a lease", .value = cpu}}},
           *rounds));
  return {};
}

Result<void> run(Bench& bench) {
  auto daemon = bench.start_daemon({.memory_bytes = 64 * kMiB});
  if (!daemon) return std::unexpected(daemon.error());
  auto client = daemon->connect();
  if (!client) return std::unexpected(client.error());
  const auto tensor = create(*client, 0);
  if (!tensor) return std::unexpected(tensor.error());
  if (const auto alone = run_alone(bench, *daemon, *client, *tensor); !alone) return alone;
  if (const auto together = run_together(bench, *client); !together) return together;
  return check_bytes(*client, *tensor, 0);
}

}  // namespace

Suite lease_suite() {
  return {.name = "lease",
          .what = "hits, against a gRPC echo, and on every core at once",
          .rows = {"lease.hit", "lease.hit_p50", "lease.system_calls", "lease.all_cores"},
          .lacks = nullptr,
          .run = run};
}

}  // namespace terrace::bench
