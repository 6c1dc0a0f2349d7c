// SPDX-License-Identifier: Apache-2.0
// Large tensors between DRAM and the emulated device, against memcpy by as many threads as the daemon copies with.
#include <fmt/format.h>

#include "base/bytes.h"
#include "bench/contents.h"
#include "bench/counters.h"
#include "bench/memcpy_reference.h"
#include "bench/suite.h"

namespace terrace::bench {
namespace {

constexpr double kBar = 0.95;
constexpr Place kDevice = Place::device(0);

struct Working {
  Client& client;
  const PrivateDaemon& daemon;
  std::vector<Tensor> tensors;
  std::uint64_t version = 0;

  double bytes() const { return static_cast<double>(tensors.size() * tensors[0].bytes()); }

  // New content, written on the device: that alone is where it is.
  Result<void> write_on_device() {
    ++version;
    for (std::uint64_t i = 0; i < tensors.size(); ++i) {
      auto lease = client.acquire(tensors[i], {.place = kDevice, .mode = Mode::kOverwrite});
      if (!lease) return std::unexpected(lease.error());
      fill(lease->writable_bytes(), i, version);
    }
    return {};
  }

  Result<void> check_at(Place place) {
    for (std::uint64_t i = 0; i < tensors.size(); ++i) {
      const auto lease = client.acquire(tensors[i], {.place = place});
      if (!lease) return std::unexpected(lease.error());
      if (const auto right = check(lease->bytes(), i, version); !right) return right;
    }
    return {};
  }
};

// GiB a second both ways, and the daemon's CPU a GiB.
struct Moved {
  double up = 0;
  double down = 0;
  double up_cpu = 0;
  double down_cpu = 0;
};

Result<Moved> move(Working& working) {
  const double gib = working.bytes() / static_cast<double>(kGiB);
  const auto timed = [&](const auto& call, double& rate, double& cpu) -> Result<void> {
    const Counters before = counters_of_process(working.daemon.pid());
    const auto begin = std::chrono::steady_clock::now();
    if (const auto done = call(); !done) return done;
    rate = gib / seconds_since(begin);
    cpu = static_cast<double>((counters_of_process(working.daemon.pid()) - before).cpu_ns) / 1e9 / gib;
    return {};
  };
  Moved moved;
  Result<void> done = working.write_on_device();
  if (done)
    done = timed([&] { return working.client.swap_out(working.tensors, Place::host()); }, moved.down, moved.down_cpu);
  if (done) done = working.check_at(Place::host());
  if (done) done = timed([&] { return working.client.swap_in(working.tensors, kDevice); }, moved.up, moved.up_cpu);
  if (done) done = working.check_at(kDevice);
  if (!done) return std::unexpected(done.error());
  return moved;
}

Result<Working> set_up(Bench& bench, Client& client, const PrivateDaemon& daemon) {
  Working working{.client = client, .daemon = daemon, .tensors = {}};
  std::vector<TensorSpec> specs;
  for (int i = 0; i < 4; ++i)
    specs.push_back({.name = fmt::format("large {}", i), .bytes = bench.either(64 * kMiB, 8 * kMiB)});
  auto tensors = client.create(specs);
  if (!tensors) return std::unexpected(tensors.error());
  working.tensors = std::move(*tensors);
  if (const auto warmed = move(working); !warmed) return std::unexpected(warmed.error());
  return working;
}

Row row_of(const char* name, const char* path, const MemcpyReference& reference, double cpu, double reference_cpu) {
  return {
      .bench = name,
      .path = path,
      .unit = "GiB/s",
      .reference = reference.described(),
      .bar = kBar,
      .better = Better::kHigher,
      .counts = {{.name = "times memcpy's CPU, the daemon's a byte", .value = cpu / reference_cpu, .limit = 1 / kBar},
                 {.name = "s of the daemon's CPU a GiB", .value = cpu}}};
}

Result<void> run(Bench& bench) {
  const std::uint64_t tier = bench.either(512 * kMiB, 64 * kMiB);
  auto daemon = bench.start_daemon({.device_bytes = tier, .memory_bytes = tier});
  if (!daemon) return std::unexpected(daemon.error());
  auto client = daemon->connect();
  if (!client) return std::unexpected(client.error());
  auto working = set_up(bench, *client, *daemon);
  if (!working) return std::unexpected(working.error());
  auto memcpy_reference = MemcpyReference::make(static_cast<std::uint64_t>(working->bytes()));
  if (!memcpy_reference) return std::unexpected(memcpy_reference.error());
  const double gib = working->bytes() / static_cast<double>(kGiB);

  std::vector<double> down;
  std::vector<double> up_cpu;
  std::vector<double> down_cpu;
  std::vector<double> reference_cpu;
  const Measure reference = [&]() -> Result<double> {
    const auto copied = memcpy_reference->copy();
    if (!copied) return std::unexpected(copied.error());
    reference_cpu.push_back(copied->cpu_seconds / gib);
    return copied->bytes_per_second / static_cast<double>(kGiB);
  };
  const Measure both = [&]() -> Result<double> {
    const auto moved = move(*working);
    if (!moved) return std::unexpected(moved.error());
    down.push_back(moved->down);
    up_cpu.push_back(moved->up_cpu);
    down_cpu.push_back(moved->down_cpu);
    return moved->up;
  };
  auto rounds = bench.take_turns("copy", both, reference);
  if (!rounds) return std::unexpected(rounds.error());
  bench.add(with(
      row_of("copy.up", "copy DRAM to (emulated) device", *memcpy_reference, median(up_cpu), median(reference_cpu)),
      *rounds));
  for (std::size_t i = 0; i < rounds->size(); ++i) (*rounds)[i].value = down[i];
  bench.add(with(
      row_of("copy.down", "copy (emulated) device to DRAM", *memcpy_reference, median(down_cpu), median(reference_cpu)),
      *rounds));
  return {};
}

}  // namespace

Suite copy_suite() {
  return {.name = "copy",
          .what = "DRAM to the emulated device and back, against memcpy",
          .rows = {"copy.up", "copy.down"},
          .lacks = nullptr,
          .run = run};
}

}  // namespace terrace::bench
