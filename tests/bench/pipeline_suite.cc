// SPDX-License-Identifier: Apache-2.0
// The suite `pipeline`: a working set of ten times the DRAM streams from the disk through DRAM to an (emulated) device.
#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <vector>

#include "bench/block_rig.h"
#include "bench/contents.h"
#include "bench/memcpy_reference.h"
#include "bench/suite.h"

namespace terrace::bench {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;
constexpr double kGiB = 1ull << 30;
constexpr std::uint64_t kWorkingSetOfMemory = 10;
constexpr std::uint64_t kPiecesOfMemory = 16;  // a tensor is so much of it
constexpr std::size_t kAhead = 8;              // tensors asked for beyond the one that is used

// Uses the tensors one after the other at the device, each once; `use` sees each one's bytes.
template <typename Use>
Result<void> stream(Client& client, const std::vector<Tensor>& tensors, Use use) {
  std::deque<Pending<std::vector<Lease>>> coming;
  std::size_t asked = 0;
  for (std::size_t index = 0; index < tensors.size(); ++index) {
    for (; asked < tensors.size() && asked <= index + kAhead; ++asked)
      coming.push_back(client.acquire_async(std::span(&tensors[asked], 1), {.place = Place::device(0)}));
    auto leases = coming.front().wait(kTimeoutDefault);
    if (!leases) return std::unexpected(leases.error());
    coming.pop_front();
    if (const auto used = use(index, (*leases)[0].bytes()); !used) return used;
  }
  return {};
}

Result<void> run(Bench& bench) {
  const std::uint64_t memory = bench.either<std::uint64_t>(256 * kMiB, 64 * kMiB);
  const SetShape shape{
      .name = "layer", .count = kWorkingSetOfMemory * kPiecesOfMemory, .bytes = memory / kPiecesOfMemory};
  // The least that the daemon's segments make of the memory is asked for: a sixteenth each.
  auto rig = BlockRig::make(
      bench, {.device_bytes = 2 * memory, .memory_bytes = memory, .block_bytes = shape.total() * 17 / 16 + 16 * kMiB},
      shape.total());
  if (!rig) return std::unexpected(rig.error());
  auto set = TensorSet::make(rig->client(), shape);
  if (!set) return std::unexpected(set.error());
  auto copier = MemcpyReference::make(bench.either<std::uint64_t>(256 * kMiB, 64 * kMiB));
  if (!copier) return std::unexpected(copier.error());
  const auto job = rig->best(bench, {.pattern = Pattern::kRead, .block_bytes = kMiB, .bytes = shape.total()});
  if (!job) return std::unexpected(job.error());
  std::vector<Moved> moved;
  std::vector<double> copies;
  std::vector<QueueSeen> queues;
  BesideMoreMemory beside(rig->fio(), *job);
  const Measure value = [&]() -> Result<double> {
    // What the pass before left in DRAM is not to come from there.
    if (const auto gone = rig->client().swap_out(set->tensors()); !gone) return std::unexpected(gone.error());
    auto took = rig->moving(shape.total(), [&] {
      return stream(rig->client(), set->tensors(),
                    [](std::size_t index, std::span<const std::byte> bytes) { return check_samples(bytes, index, 1); });
    });
    if (!took) return std::unexpected(took.error());
    moved.push_back(std::move(*took));
    // Once more, and every byte is checked where it would be used.
    const auto right = stream(rig->client(), set->tensors(), [&](std::size_t index, std::span<const std::byte> bytes) {
      return check(bytes, index, 1);
    });
    if (!right) return std::unexpected(right.error());
    return moved.back().gib_per_second;
  };
  const Measure reference = [&]() -> Result<double> {
    beside.measure();
    auto figures = rig->fio().run(*job);
    if (!figures) return std::unexpected(figures.error());
    const auto copy = copier->copy();
    if (!copy) return std::unexpected(copy.error());
    copies.push_back(copy->bytes_per_second / kGiB);
    queues.push_back(std::move(figures->queue));
    return std::min(figures->gib_per_second, copies.back());
  };
  if (const auto warm = value(); !warm) return std::unexpected(warm.error());
  moved.clear();
  const auto rounds = bench.take_turns("block to device", value, reference);
  if (!rounds) return std::unexpected(rounds.error());
  std::vector<QueueSeen> our_queues;
  std::vector<double> reads;
  std::vector<double> cpu;
  for (const Moved& each : moved) {
    our_queues.push_back(each.queue);
    reads.push_back(each.disk_reads_per_byte);
    cpu.push_back(each.cpu_seconds_per_gib);
  }
  const auto more = beside.count(compared(*rounds).value, rounds->size());
  Row row = with(
      {.bench = "pipeline.block_to_device",
       .path = fmt::format("block -> DRAM -> device (emulated), working set {} times DRAM, {} tensors ahead",
                           kWorkingSetOfMemory, kAhead),
       .unit = "GiB/s",
       .reference = fmt::format("the slower of {}, and {}", rig->fio().described(*job), copier->described()),
       .bar = 0.95,
       .counts =
           {count_of(queue_kept(our_queues, queues)),
            {.name = "bytes read from the disk a byte", .value = median(reads), .limit = 1, .better = Better::kHigher},
            {.name = "memcpy, GiB/s", .value = median(copies)},
            {.name = "daemon's CPU seconds a GiB", .value = median(cpu)}}},
      *rounds);
  if (more) row.counts.push_back(*more);
  bench.add(std::move(row));
  return {};
}

std::vector<std::string> lacks(const Settings& settings) {
  const std::string lack = cannot_run_fio(settings.fio);
  return lack.empty() ? std::vector<std::string>{} : std::vector<std::string>{lack};
}

}  // namespace

Suite pipeline_suite() {
  return {.name = "pipeline",
          .what = "a working set ten times the DRAM, from the disk to an emulated device",
          .rows = {"pipeline.block_to_device"},
          .disk = {.full = 5632 * kMiB, .quick = 1408 * kMiB},
          .lacks = lacks,
          .run = run};
}

}  // namespace terrace::bench
