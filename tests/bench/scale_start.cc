// SPDX-License-Identifier: Apache-2.0
#include "bench/scale_start.h"

#include <fmt/format.h>

#include <fstream>
#include <thread>

#include "base/bytes.h"
#include "bench/contents.h"
#include "bench/counters.h"
#include "bench/free_memory.h"
#include "bench/memcpy_reference.h"

namespace terrace::bench {
namespace {

constexpr std::uint64_t kTensors = 32;  // that fill the tier
constexpr std::uint64_t kTier = 8 * kGiB;
constexpr std::uint64_t kTierQuick = 256 * kMiB;
constexpr std::chrono::microseconds kBetweenLooks{200};
constexpr std::chrono::seconds kPatience{60};
constexpr double kStartBar = 1.1;
constexpr double kRestartBar = 1.2;

// Since it began.
double cpu_seconds_of(const PrivateDaemon& daemon) {
  return static_cast<double>(counters_of_process(daemon.pid()).cpu_ns) / 1e9;
}

DaemonOptions options_of(Bench& bench, bool supervised) {
  return {.memory_bytes = bench.either(kTier, kTierQuick), .supervised = supervised, .waits = false};
}

// A session as soon as the daemon gives one.
Result<Client> connect_soon(const PrivateDaemon& daemon, const std::vector<Guarantee>& guarantees = {}) {
  const auto begin = std::chrono::steady_clock::now();
  for (;;) {
    auto client = daemon.connect({.guarantees = guarantees, .timeout = kPatience, .reconnect_timeout = kPatience});
    if (client || seconds_since(begin) > std::chrono::duration<double>(kPatience).count()) return client;
    std::this_thread::sleep_for(kBetweenLooks);
  }
}

// Tensors that take all of the DRAM tier, and leases to overwrite all of them at once.
struct Filled {
  std::vector<Tensor> tensors;
  std::vector<Lease> leases;
};

Result<Filled> fill_tier(Bench& bench, Client& client) {
  std::vector<TensorSpec> specs;
  for (std::uint64_t i = 0; i < kTensors; ++i)
    specs.push_back({.name = fmt::format("part {}", i), .bytes = bench.either(kTier, kTierQuick) / kTensors});
  auto tensors = client.create(specs);
  if (!tensors) return std::unexpected(tensors.error());
  auto leases = client.acquire(*tensors, {.mode = Mode::kOverwrite});
  if (!leases) return std::unexpected(leases.error());
  return Filled{std::move(*tensors), std::move(*leases)};
}

// Each tensor's first and last page.
constexpr std::uint64_t kMarked = kPageBytes;
Result<void> check_marks(Client& client, std::span<const Tensor> tensors) {
  for (std::uint64_t i = 0; i < tensors.size(); ++i) {
    auto lease = client.acquire(tensors[i]);
    if (!lease) return std::unexpected(lease.error());
    for (const auto& page : {lease->bytes().first(kMarked), lease->bytes().last(kMarked)})
      if (const auto right = check(page, i, 1); !right) return right;
  }
  return {};
}

void mark(Filled& filled) {
  for (std::uint64_t i = 0; i < filled.leases.size(); ++i)
    for (const auto& page :
         {filled.leases[i].writable_bytes().first(kMarked), filled.leases[i].writable_bytes().last(kMarked)})
      fill(page, i, 1);
}

// Kills the daemon; seconds until another client gets its first answer. It asks for no memory: a full tier has none.
// To `cpu_seconds` what the successor has computed by then.
Result<double> restart(const PrivateDaemon& daemon, std::vector<double>& cpu_seconds) {
  const pid_t before = daemon.pid();
  const auto begin = std::chrono::steady_clock::now();
  daemon.kill_inner();
  while (daemon.pid() == before) std::this_thread::sleep_for(kBetweenLooks);
  const auto client = connect_soon(daemon, {{Place::host(), 0}});
  if (!client) return std::unexpected(client.error());
  const double seconds = seconds_since(begin);
  cpu_seconds.push_back(cpu_seconds_of(daemon));
  return seconds;
}

}  // namespace

std::vector<std::string> lacks_memory(const Settings& settings) {
  std::ifstream meminfo("/proc/meminfo");
  const std::string lack = settings.quick ? lack_of_memory(free_memory(meminfo), kTierQuick, 7 * kTierQuick)
                                          : lack_of_memory(free_memory(meminfo), kTier, 2 * kGiB);
  return lack.empty() ? std::vector<std::string>{} : std::vector<std::string>{lack};
}

Result<void> run_start(Bench& bench) {
  const std::uint64_t bytes = bench.either(kTier, kTierQuick);
  std::string described;
  std::vector<double> cpu;
  std::vector<double> reference_cpu;
  const Measure value = [&]() -> Result<double> {
    const auto begin = std::chrono::steady_clock::now();
    auto daemon = bench.start_daemon(options_of(bench, false));
    if (!daemon) return std::unexpected(daemon.error());
    auto client = connect_soon(*daemon);
    if (!client) return std::unexpected(client.error());
    auto filled = fill_tier(bench, *client);
    if (!filled) return std::unexpected(filled.error());
    const double seconds = seconds_since(begin);
    cpu.push_back(cpu_seconds_of(*daemon));
    mark(*filled);
    filled->leases.clear();
    if (const auto right = check_marks(*client, filled->tensors); !right) return std::unexpected(right.error());
    return seconds;
  };
  const Measure reference = [&]() -> Result<double> {
    auto touched = map_and_touch(bytes);
    if (!touched) return std::unexpected(touched.error());
    described = std::move(touched->described);
    reference_cpu.push_back(touched->cpu_seconds);
    return touched->seconds;
  };
  if (const auto warmed = reference(); !warmed) return std::unexpected(warmed.error());
  const auto rounds = bench.take_turns("scale.start", value, reference);
  if (!rounds) return std::unexpected(rounds.error());
  bench.add(with({.bench = "scale.start",
                  .path = fmt::format("from start to serving, {} of DRAM prefaulted and leased", format_bytes(bytes)),
                  .unit = "s",
                  .reference = described,
                  .bar = kStartBar,
                  .better = Better::kLower,
                  .counts = {{.name = "times the CPU of mmap and touch, the daemon's",
                              .value = median(cpu) / median(reference_cpu),
                              .limit = kStartBar},
                             {.name = "s of the daemon's CPU", .value = median(cpu)}}},
                 *rounds));
  return {};
}

Result<void> run_restart(Bench& bench) {
  auto empty = bench.start_daemon(options_of(bench, true));
  if (!empty) return std::unexpected(empty.error());
  auto full = bench.start_daemon(options_of(bench, true));
  if (!full) return std::unexpected(full.error());
  auto idle = connect_soon(*empty);
  if (!idle) return std::unexpected(idle.error());
  auto client = connect_soon(*full);
  if (!client) return std::unexpected(client.error());
  auto filled = fill_tier(bench, *client);
  if (!filled) return std::unexpected(filled.error());
  mark(*filled);
  filled->leases.clear();
  std::vector<double> cpu;
  std::vector<double> empty_cpu;
  const auto rounds = bench.take_turns(
      "scale.restart", [&] { return restart(*full, cpu); }, [&] { return restart(*empty, empty_cpu); });
  if (!rounds) return std::unexpected(rounds.error());
  if (const auto right = check_marks(*client, filled->tensors); !right) return right;
  bench.add(with({.bench = "scale.restart",
                  .path = fmt::format("from a daemon's death to its successor's first answer, {} of DRAM full",
                                      format_bytes(bench.either(kTier, kTierQuick))),
                  .unit = "s",
                  .reference = "the same, empty",
                  .bar = kRestartBar,
                  .better = Better::kLower,
                  .counts = {{.name = "times the successor's CPU of an empty one",
                              .value = median(cpu) / median(empty_cpu),
                              .limit = kRestartBar},
                             {.name = "s of the successor's CPU", .value = median(cpu)}}},
                 *rounds));
  return {};
}

}  // namespace terrace::bench
