// SPDX-License-Identifier: Apache-2.0
// The suite `block`: tensors between memory and the disk, beside fio on the same disk.
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <numeric>
#include <span>

#include "base/bytes.h"
#include "bench/block_clients.h"
#include "bench/block_rig.h"
#include "bench/memcpy_reference.h"
#include "bench/suite.h"
#include "tier/block/xxh3.h"

namespace terrace::bench {
namespace {

constexpr std::uint64_t kKiB = 1024;
constexpr std::uint64_t kMiB = 1024 * kKiB;
constexpr double kGiB = 1ull << 30;
constexpr unsigned kDaemonDepth = 64;  // chunks that the daemon has under way at most

// What is moved, and by what requests.
struct Small {
  const char* row;
  const char* path;
  std::uint64_t tensor_bytes;
  std::size_t count;
  std::size_t together;     // tensors a request
  std::size_t outstanding;  // requests under way
  double bar;
};

double thread_cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

// One pass of XXH3 over memory that no cache holds, in pages and chunks as the daemon's.
Result<double> xxh3_seconds_per_gib() {
  const auto mapped = ReferenceMemory::map(256 * kMiB);
  if (!mapped) return std::unexpected(mapped.error());
  const std::span<std::byte> memory = mapped->bytes();
  std::ranges::fill(memory, std::byte{7});
  std::uint64_t sum = 0;
  const double begin = thread_cpu_seconds();
  for (std::size_t at = 0; at < memory.size(); at += kMiB) sum += XXH3_64bits(memory.data() + at, kMiB);
  const double took = thread_cpu_seconds() - begin;
  return (sum == 0 ? 2 : 1) * took / (static_cast<double>(memory.size()) / kGiB);
}

Result<void> hash_into(std::vector<double>& seconds_per_gib) {
  const auto took = xxh3_seconds_per_gib();
  if (!took) return std::unexpected(took.error());
  seconds_per_gib.push_back(*took);
  return {};
}

class BlockSuite {
 public:
  BlockSuite(Bench& bench, BlockRig& rig, TensorSet& one, TensorSet& other)
      : bench_(bench), rig_(rig), client_(rig.client()), one_(one), other_(other) {
    all_ = one.tensors();
    all_.insert(all_.end(), other.tensors().begin(), other.tensors().end());
  }

  Result<void> run() {
    for (const auto step : {&BlockSuite::large_in, &BlockSuite::large_out, &BlockSuite::mixed, &BlockSuite::cpu})
      if (const auto done = (this->*step)(); !done) return done;
    if (const auto gone = one_.destroy(); !gone) return gone;
    if (const auto gone = other_.destroy(); !gone) return gone;
    return small_ones();
  }

 private:
  std::uint64_t bytes() const { return one_.shape().total() + other_.shape().total(); }
  Result<void> down() { return client_.swap_out(all_); }
  Result<void> rewrite() {
    if (const auto done = one_.rewrite(); !done) return done;
    return other_.rewrite();
  }
  Result<void> check() {
    if (const auto right = one_.check(); !right) return right;
    return other_.check();
  }
  Result<FioJob> best(Pattern pattern, std::uint64_t block_bytes, std::uint64_t bytes) const {
    return rig_.best(bench_, {.pattern = pattern, .block_bytes = block_bytes, .bytes = bytes});
  }
  Result<FioJob> best(Pattern pattern) const { return best(pattern, kMiB, bytes()); }

  void add_queue(const char* bench, const char* path, const BlockRounds& rounds) {
    const QueueKept queue = rounds.queue();
    bench_.add({.bench = bench,
                .path = fmt::format("{}: with fio's median in the disk's queue, {}", path,
                                    format_bytes(static_cast<std::uint64_t>(queue.reference_bytes))),
                .value = queue.of_time,
                .unit = "of the time",
                .ratio_of = RatioOf::kValue,
                .bar = *count_of(queue).limit});
  }

  Result<void> large_in() {
    const auto job = best(Pattern::kRead);
    if (!job) return std::unexpected(job.error());
    const auto rounds = BlockRounds::run(bench_, "swap-in, 64 MiB tensors", rig_,
                                         {.bytes = bytes(),
                                          .prepare =
                                              [&] {
                                                const auto hashed = hash_into(hashed_in_);
                                                return hashed ? down() : hashed;
                                              },
                                          .move = [&] { return client_.swap_in(all_, Place::host()); },
                                          .verify = [&] { return check(); }},
                                         *job);
    if (!rounds) return std::unexpected(rounds.error());
    bench_.add(rounds->row({.bench = "block.in_64mib",
                            .path = "swap-in from block, 64 MiB tensors, checksums on",
                            .unit = "GiB/s",
                            .reference = rig_.fio().described(*job),
                            .bar = 0.97},
                           1));
    add_queue("block.in_64mib_queue", "swap-in from block, 64 MiB tensors", *rounds);
    in_ = *rounds;
    return {};
  }

  Result<void> large_out() {
    const auto job = best(Pattern::kWrite);
    if (!job) return std::unexpected(job.error());
    const auto rounds = BlockRounds::run(bench_, "swap-out, 64 MiB tensors", rig_,
                                         {.bytes = bytes(),
                                          .prepare =
                                              [&] {
                                                const auto hashed = hash_into(hashed_out_);
                                                return hashed ? rewrite() : hashed;
                                              },
                                          .move = [&] { return down(); },
                                          .verify = [&] { return check(); }},
                                         *job);
    if (!rounds) return std::unexpected(rounds.error());
    bench_.add(rounds->row({.bench = "block.out_64mib",
                            .path = "swap-out to block, 64 MiB tensors, checksums on",
                            .unit = "GiB/s",
                            .reference = rig_.fio().described(*job),
                            .bar = 0.97},
                           0));
    add_queue("block.out_64mib_queue", "swap-out to block, 64 MiB tensors", *rounds);
    out_ = *rounds;
    return {};
  }

  // One half comes while the other goes.
  Result<void> mixed() {
    const auto move = [&]() -> Result<void> {
      auto coming = client_.swap_in_async(one_.tensors(), Place::host());
      if (const auto gone = client_.swap_out(other_.tensors()); !gone) return gone;
      return coming.wait(kTimeoutDefault);
    };
    const auto prepare = [&]() -> Result<void> {
      if (const auto gone = client_.swap_out(one_.tensors()); !gone) return gone;
      return other_.rewrite();
    };
    const auto job = best(Pattern::kMixed);
    if (!job) return std::unexpected(job.error());
    const auto rounds =
        BlockRounds::run(bench_, "in and out together", rig_,
                         {.bytes = bytes(), .prepare = prepare, .move = move, .verify = [&] { return check(); }}, *job);
    if (!rounds) return std::unexpected(rounds.error());
    bench_.add(rounds->row({.bench = "block.mixed",
                            .path = "reads and writes together, 64 MiB tensors, as many bytes each way",
                            .unit = "GiB/s",
                            .reference = rig_.fio().described(*job),
                            .bar = 0.95},
                           0.5));
    return {};
  }

  // From the rounds above, behind the warm-up: in and out in equal parts, fio's reads and writes likewise, and XXH3 as
  // it was beside the one and the other.
  Result<void> cpu() {
    std::vector<Round> rounds;
    for (std::size_t round = 0; round < in_.moved().size(); ++round) {
      const auto fio = [&](std::size_t which) {
        return (in_.reference()[which].cpu_seconds_per_gib + out_.reference()[which].cpu_seconds_per_gib) / 2;
      };
      const double ours = (in_.moved()[round].cpu_seconds_per_gib + out_.moved()[round].cpu_seconds_per_gib) / 2;
      rounds.push_back({.reference = fio(2 * round) + hashed_in_[round + 1],
                        .value = ours,
                        .reference_again = fio(2 * round + 1) + hashed_out_[round + 1]});
    }
    std::vector<double> waits;
    for (const BlockRounds* each : {&in_, &out_})
      for (const Moved& moved : each->moved()) waits.push_back(moved.waits_per_gib);
    bench_.add(with({.bench = "block.cpu",
                     .path = "daemon's CPU a GiB moved to and from block, 64 MiB tensors",
                     .unit = "s/GiB",
                     .reference = "fio's CPU and one XXH3 pass",
                     .bar = 1.3,
                     .better = Better::kLower,
                     .counts = {{.name = "daemon's waits a GiB", .value = median(waits)}}},
                    rounds));
    return {};
  }

  Result<void> small_ones() {
    const Small all[] = {
        {.row = "block.random_1mib",
         .path = "1 MiB tensors in random order, asynchronous",
         .tensor_bytes = kMiB,
         .count = bench_.either<std::size_t>(1024, 64),
         .together = 1,
         .outstanding = 128,
         .bar = 0.95},
        {.row = "block.random_64kib",
         .path = "64 KiB tensors in random order, 16 a request",
         .tensor_bytes = 64 * kKiB,
         .count = bench_.either<std::size_t>(8192, 512),
         .together = 16,
         .outstanding = 16,
         .bar = 0.85},
        {.row = "block.random_4kib",
         .path = "4 KiB tensors in random order, 64 a request",
         .tensor_bytes = 4 * kKiB,
         .count = bench_.either<std::size_t>(16384, 1024),
         .together = 64,
         .outstanding = 8,
         .bar = 0.60},
    };
    for (const Small& each : all)
      if (const auto done = small(each); !done) return done;
    return {};
  }

  Result<void> small(const Small& what) {
    auto set = TensorSet::make(client_, {.name = what.row, .count = what.count, .bytes = what.tensor_bytes});
    if (!set) return std::unexpected(set.error());
    // The smallest beside as many requests as the daemon has under way.
    Result<FioJob> job = rig_.fio().placed({.pattern = Pattern::kRandomRead,
                                            .block_bytes = what.tensor_bytes,
                                            .bytes = set->shape().total(),
                                            .depth = kDaemonDepth});
    if (what.tensor_bytes > 4 * kKiB) job = best(job->pattern, job->block_bytes, job->bytes);
    if (!job) return std::unexpected(job.error());
    std::uint64_t seed = 0;
    std::vector<Tensor> order;
    const auto rounds =
        BlockRounds::run(bench_, what.path, rig_,
                         {.bytes = set->shape().total(),
                          .prepare =
                              [&] {
                                order = shuffled(set->tensors(), ++seed);
                                return client_.swap_out(set->tensors());
                              },
                          .move = [&] { return bring(client_, order, what.together, what.outstanding); },
                          .verify = [&] { return set->check(); }},
                         *job);
    if (!rounds) return std::unexpected(rounds.error());
    bench_.add(rounds->row({.bench = what.row,
                            .path = what.path,
                            .unit = "GiB/s",
                            .reference = rig_.fio().described(*job),
                            .bar = what.bar},
                           1));
    return set->destroy();
  }

  Bench& bench_;
  BlockRig& rig_;
  Client& client_;
  TensorSet& one_;
  TensorSet& other_;
  std::vector<Tensor> all_;
  BlockRounds in_;
  BlockRounds out_;
  std::vector<double> hashed_in_;  // seconds a GiB of XXH3, before each measurement
  std::vector<double> hashed_out_;
};

Result<void> run(Bench& bench) {
  const std::uint64_t half = bench.either<std::uint64_t>(512 * kMiB, 128 * kMiB);
  const std::uint64_t memory = 2 * half + 128 * kMiB;
  {
    auto rig = BlockRig::make(bench, {.memory_bytes = memory, .block_bytes = 2 * half + 128 * kMiB}, 2 * half);
    if (!rig) return std::unexpected(rig.error());
    auto one = TensorSet::make(rig->client(), {.name = "one", .count = half / (64 * kMiB), .bytes = 64 * kMiB});
    if (!one) return std::unexpected(one.error());
    auto other = TensorSet::make(rig->client(), {.name = "other", .count = half / (64 * kMiB), .bytes = 64 * kMiB});
    if (!other) return std::unexpected(other.error());
    if (const auto done = BlockSuite(bench, *rig, *one, *other).run(); !done) return done;
  }
  return measure_clients(bench);
}

std::vector<std::string> lacks(const Settings& settings) {
  const std::string lack = cannot_run_fio(settings.fio);
  return lack.empty() ? std::vector<std::string>{} : std::vector<std::string>{lack};
}

}  // namespace

Suite block_suite() {
  return {.name = "block",
          .what = "swap-in and swap-out between memory and the disk, beside fio",
          .rows = {"block.in_64mib", "block.in_64mib_queue", "block.out_64mib", "block.out_64mib_queue", "block.mixed",
                   "block.cpu", "block.random_1mib", "block.random_64kib", "block.random_4kib", "block.clients_fair",
                   "block.clients_sum"},
          .disk = {.full = 4 * (1ull << 30), .quick = 2 * (1ull << 30)},
          .lacks = lacks,
          .run = run};
}

}  // namespace terrace::bench
