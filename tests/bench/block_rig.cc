// SPDX-License-Identifier: Apache-2.0
#include "bench/block_rig.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <fstream>
#include <functional>

#include "base/bytes.h"
#include "bench/counters.h"
#include "bench/queue_depth.h"

namespace terrace::bench {
namespace {

constexpr double kGiB = 1ull << 30;
constexpr double kAtDepth = 0.97;

// What a process had from disks so far, direct I/O as any other.
std::uint64_t disk_read_bytes(pid_t pid) {
  std::ifstream counts(fmt::format("/proc/{}/io", pid));
  for (std::string line; std::getline(counts, line);)
    if (line.starts_with("read_bytes: ")) return std::stoull(line.substr(line.find(' ')));
  return 0;
}

template <typename T, typename Figure>
double median_of(const std::vector<T>& from, Figure figure) {
  std::vector<double> figures;
  for (const T& each : from) figures.push_back(std::invoke(figure, each));
  return median(std::move(figures));
}

}  // namespace

Count count_of(const QueueKept& queue) {
  const auto shown = [](double bytes) { return format_bytes(static_cast<std::uint64_t>(bytes)); };
  return {.name = fmt::format("times fio's share of the time with its median in the disk's queue, {} (here {} "
                              "requests, of {}, and {:.3f} of the time; fio's have {}, and {:.3f})",
                              shown(queue.reference_bytes), queue.depth, shown(queue.request_bytes), queue.of_time,
                              shown(queue.reference_request_bytes), queue.reference_of_time),
          .value = queue.share,
          .limit = kAtDepth,
          .better = Better::kHigher};
}

Result<BlockRig> BlockRig::make(const Bench& bench, const DaemonOptions& options, std::uint64_t file_bytes) {
  const Settings& settings = bench.settings();
  if (options.block_bytes + file_bytes > settings.disk_bytes_max) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("a block file of {} beside fio's of {} is more than the {} that --disk-max allows",
                            format_bytes(options.block_bytes), format_bytes(file_bytes),
                            format_bytes(settings.disk_bytes_max)));
  }
  bench.say(fmt::format("laying out {} for fio", format_bytes(file_bytes)));
  auto fio = Fio::prepare(settings.fio, settings.disk, file_bytes);
  if (!fio) return std::unexpected(fio.error());
  auto daemon = bench.start_daemon(options);
  if (!daemon) return std::unexpected(daemon.error());
  auto client = daemon->connect();
  if (!client) return std::unexpected(client.error());
  return BlockRig(std::move(*daemon), std::move(*client), std::move(*fio), settings.disk);
}

Result<FioJob> BlockRig::best(const Bench& bench, const FioJob& job) const {
  auto best = fio_.at_its_best(job, bench.either(3, 1), [&](const std::string& tried) { bench.say(tried); });
  if (best) bench.say("at its best: " + fio_.described(*best));
  return best;
}

Result<Moved> BlockRig::moving(std::uint64_t bytes, const std::function<Result<void>()>& work) const {
  const pid_t pid = daemon_.pid();
  const Counters before = counters_of_process(pid);
  const std::uint64_t read_before = disk_read_bytes(pid);
  QueueSampler sampler(disk_);
  const auto begin = std::chrono::steady_clock::now();
  const auto done = work();
  const double seconds = seconds_since(begin);
  Moved moved{.queue = sampler.stop()};
  if (!done) return std::unexpected(done.error());
  const Counters took = counters_of_process(pid) - before;
  const double gib = static_cast<double>(bytes) / kGiB;
  moved.gib_per_second = gib / seconds;
  moved.cpu_seconds_per_gib = static_cast<double>(took.cpu_ns) / 1e9 / gib;
  moved.waits_per_gib = static_cast<double>(took.waits) / gib;
  moved.disk_reads_per_byte = static_cast<double>(disk_read_bytes(pid) - read_before) / static_cast<double>(bytes);
  return moved;
}

Result<void> bring(Client& client, std::span<const Tensor> tensors, std::size_t together, std::size_t outstanding,
                   Place place) {
  std::deque<Pending<void>> under_way;
  const auto wait_for_first = [&] {
    auto done = under_way.front().wait(kTimeoutDefault);
    under_way.pop_front();
    return done;
  };
  for (std::size_t first = 0; first < tensors.size(); first += together) {
    if (under_way.size() == outstanding)
      if (const auto done = wait_for_first(); !done) return done;
    under_way.push_back(
        client.swap_in_async(tensors.subspan(first, std::min(together, tensors.size() - first)), place));
  }
  while (!under_way.empty())
    if (const auto done = wait_for_first(); !done) return done;
  return {};
}

BesideMoreMemory::BesideMoreMemory(const Fio& fio, const FioJob& best) : best_(best) {
  if (auto made = ThroughMemory::make(fio.file(), best); made && made->memory_bytes() > goes_round(best))
    more_ = std::move(*made);
}

void BesideMoreMemory::measure() {
  if (calls_++ % 2 != 0 || !more_) return;
  if (const auto speed = more_->run()) gib_per_second_.push_back(*speed);
}

std::optional<Count> BesideMoreMemory::count(double gib_per_second, std::size_t rounds) const {
  if (gib_per_second_.size() != rounds) return std::nullopt;
  return Count{.name = fmt::format("times the same requests through {} of memory, and not {}",
                                   format_bytes(more_->memory_bytes()), format_bytes(goes_round(best_))),
               .value = gib_per_second / median(gib_per_second_),
               .better = Better::kHigher};
}

Result<BlockRounds> BlockRounds::run(const Bench& bench, const std::string& what, const BlockRig& rig,
                                     const Measured& measured, const FioJob& job) {
  BlockRounds result;
  BesideMoreMemory beside(rig.fio(), job);
  const Measure value = [&]() -> Result<double> {
    if (const auto prepared = measured.prepare(); !prepared) return std::unexpected(prepared.error());
    auto moved = rig.moving(measured.bytes, measured.move);
    if (!moved) return std::unexpected(moved.error());
    if (const auto right = measured.verify(); !right) return std::unexpected(right.error());
    result.moved_.push_back(std::move(*moved));
    return result.moved_.back().gib_per_second;
  };
  const Measure reference = [&]() -> Result<double> {
    beside.measure();
    auto figures = rig.fio().run(job);
    if (!figures) return std::unexpected(figures.error());
    result.reference_.push_back(std::move(*figures));
    return result.reference_.back().gib_per_second;
  };
  if (const auto warm = value(); !warm) return std::unexpected(warm.error());
  result.moved_.clear();
  auto rounds = bench.take_turns(what, value, reference);
  if (!rounds) return std::unexpected(rounds.error());
  result.rounds_ = std::move(*rounds);
  result.beside_more_memory_ = beside.count(median_of(result.moved_, &Moved::gib_per_second), result.rounds_.size());
  return result;
}

QueueKept BlockRounds::queue() const {
  std::vector<QueueSeen> ours;
  std::vector<QueueSeen> fios;
  for (const Moved& moved : moved_) ours.push_back(moved.queue);
  for (const FioFigures& figures : reference_) fios.push_back(figures.queue);
  return queue_kept(ours, fios);
}

Row BlockRounds::row(Row row, double reads) const {
  row = with(std::move(row), rounds_);
  row.counts.push_back(count_of(queue()));
  if (reads > 0) {
    row.counts.push_back({.name = "bytes read from the disk a byte that came",
                          .value = median_of(moved_, &Moved::disk_reads_per_byte) / reads,
                          .limit = 1,
                          .better = Better::kHigher});
  }
  if (beside_more_memory_) row.counts.push_back(*beside_more_memory_);
  row.counts.push_back({.name = "daemon's CPU seconds a GiB", .value = median_of(moved_, &Moved::cpu_seconds_per_gib)});
  row.counts.push_back(
      {.name = "fio's CPU seconds a GiB", .value = median_of(reference_, &FioFigures::cpu_seconds_per_gib)});
  row.counts.push_back({.name = "daemon's waits a GiB", .value = median_of(moved_, &Moved::waits_per_gib)});
  return row;
}

}  // namespace terrace::bench
