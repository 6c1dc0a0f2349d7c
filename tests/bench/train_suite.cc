// SPDX-License-Identifier: Apache-2.0
// The training of the Python examples (train_gpt.py): all of it in DRAM against the same without Terrace, and with the
// demo's tiers against what computing, or the slowest link, takes at least.
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <string>

#include "base/bytes.h"
#include "bench/disk_speed.h"
#include "bench/memcpy_reference.h"
#include "bench/suite.h"

namespace terrace::bench {
namespace {

// What one run of the example says (--json), of a step.
struct Trained {
  double step_seconds = 0;       // through Terrace
  double reference_seconds = 0;  // in memory
  double cpu_seconds = 0;        // the trainer's own, through Terrace
  double reference_cpu_seconds = 0;
  double daemon_cpu_seconds = 0;  // all of the run's, as what follows: creation included
  double h2d_bytes = 0;
  double d2h_bytes = 0;
  double block_read_bytes = 0;
  double block_write_bytes = 0;
};

// How docs/guides/pytorch.md has trainers start that give freed memory back.
constexpr const char* kHeap =
    "GLIBC_TUNABLES=glibc.malloc.tcache_max=24:glibc.malloc.mxfast=0:"
    "glibc.malloc.mmap_threshold=33554432:glibc.malloc.trim_threshold=17179869184";

struct Tiers {
  const char* device;
  const char* memory;
  const char* block;
};
constexpr Tiers kInDram{"1GiB", "1GiB", "2GiB"};
constexpr Tiers kDemo{"64MiB", "128MiB", "2GiB"};
constexpr int kRuns = 6;
constexpr int kRunsQuick = 2;
constexpr std::uint64_t kBlockBytes = 2 * kGiB;  // of both
constexpr std::uint64_t kReferenceBytes = 512 * kMiB;
constexpr std::uint64_t kReferenceBytesQuick = 64 * kMiB;

// That this process, and so the example, may run on.
unsigned processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return ::sched_getaffinity(0, sizeof(set), &set) == 0 ? static_cast<unsigned>(CPU_COUNT(&set)) : 1;
}

// The example trains through Terrace, and then in memory by a process of its own, started as anybody starts Python.
// PyTorch has that many threads in both.
Result<Trained> train(const Settings& settings, const Tiers& tiers, unsigned threads, int steps) {
  auto folder = Folder::make(settings.disk);
  if (!folder) return std::unexpected(folder.error());
  const std::filesystem::path file = folder->path() / "result.json";
  auto temporary = Folder::make_temporary();  // PyTorch leaves folders there
  if (!temporary) return std::unexpected(temporary.error());
  std::vector<std::string> command{"env", "TMPDIR=" + temporary->path().string(),       kHeap, settings.python,
                                   "-B",  (settings.examples / "train_gpt.py").string()};
  command.insert(command.end(), {"--terraced", settings.terraced, "--steps", std::to_string(steps)});
  command.insert(command.end(), {"--json", file.string(), "--block", folder->path().string()});
  command.insert(command.end(), {"--device", tiers.device, "--memory", tiers.memory, "--block-size", tiers.block});
  command.insert(command.end(), {"--threads", std::to_string(threads)});
  if (settings.quick) command.insert(command.end(), {"--batch", "1", "--blocks", "2"});
  if (const auto ran = output_of(command); !ran) return std::unexpected(ran.error());
  std::ifstream stream(file);
  const auto said = nlohmann::json::parse(stream, nullptr, false);
  if (said.is_discarded()) return fail(ErrorCode::kInternal, "train_gpt.py wrote no numbers");
  if (!said.value("losses_equal", false)) return fail(ErrorCode::kDataLoss, "the losses of train_gpt.py differ");
  return Trained{.step_seconds = said.at("step_seconds"),
                 .reference_seconds = said.at("reference_step_seconds"),
                 .cpu_seconds = said.at("step_cpu_seconds"),
                 .reference_cpu_seconds = said.at("reference_step_cpu_seconds"),
                 .daemon_cpu_seconds = said.at("daemon_cpu_seconds"),
                 .h2d_bytes = said.at("h2d_bytes"),
                 .d2h_bytes = said.at("d2h_bytes"),
                 .block_read_bytes = said.at("block_read_bytes"),
                 .block_write_bytes = said.at("block_write_bytes")};
}

// What a step moves and the daemon computes: what a run of more steps took more than one of a single step, which has
// creating the tensors in it as well. Bytes are those of the daemon's links (terrace_transfer_bytes_total).
Trained a_step(const Trained& one, Trained many, int steps) {
  for (const auto sum : {&Trained::daemon_cpu_seconds, &Trained::h2d_bytes, &Trained::d2h_bytes,
                         &Trained::block_read_bytes, &Trained::block_write_bytes})
    many.*sum = std::max(0.0, many.*sum - one.*sum) / (steps - 1);
  return many;
}

// A run is one through Terrace and one in memory, so that runs one after another take turns: a round's reference
// is that of the run before. one: a run of a single step. `after` is called behind each run, with what a step of it
// took.
Result<std::vector<Trained>> train_in_turns(
    Bench& bench, const std::string& what, const Tiers& tiers, unsigned threads, int runs, const Trained& one,
    const std::function<Result<void>(const Trained&)>& after = [](const Trained&) { return Result<void>(); }) {
  const int steps = bench.either(9, 2);  // of which the example leaves a third out
  std::vector<Trained> all;
  for (int run = 0; run < runs; ++run) {
    const auto trained = train(bench.settings(), tiers, threads, steps);
    if (!trained) return std::unexpected(trained.error());
    bench.say(fmt::format("{}: run {} of {}", what, run + 1, runs));
    all.push_back(a_step(one, *trained, steps));
    if (const auto done = after(all.back()); !done) return std::unexpected(done.error());
  }
  return all;
}

// Rounds of what follows the first run, with the reference of the run before and of the run itself.
std::vector<Round> rounds_of(const std::vector<Trained>& runs, const std::vector<double>& references) {
  std::vector<Round> rounds;
  for (std::size_t i = 1; i < runs.size(); ++i)
    rounds.push_back({references[i - 1], runs[i].step_seconds, references[i]});
  return rounds;
}

template <typename Figure>
double median_of(const std::vector<Trained>& runs, Figure figure) {
  std::vector<double> figures;
  for (const Trained& run : runs) figures.push_back(std::invoke(figure, run));
  return median(std::move(figures));
}

// The same where PyTorch, in memory too, leaves a processor to the daemon, as a node's ranks do. Clocks, and so no
// limit.
Result<std::vector<Count>> with_one_left(Bench& bench, const std::string& what, const Tiers& tiers, const Trained& one,
                                         const std::function<Result<double>(const Trained&)>& reference_of) {
  const unsigned all = processors();
  if (all < 2) return std::vector<Count>{};
  std::vector<double> ratios;
  std::vector<double> references;
  const auto compare = [&](const Trained& step) -> Result<void> {
    const auto reference = reference_of(step);
    if (!reference) return std::unexpected(reference.error());
    references.push_back(*reference);
    ratios.push_back(step.step_seconds / *reference);
    return {};
  };
  const auto runs = train_in_turns(bench, what + ", a processor left to the daemon", tiers, all - 1,
                                   bench.either(kRuns / 2, 1), one, compare);
  if (!runs) return std::unexpected(runs.error());
  const std::string so = fmt::format("with PyTorch on {} of {} processors", all - 1, all);
  return std::vector<Count>{{.name = "times its reference, " + so, .value = median(std::move(ratios))},
                            {.name = "s a step, " + so, .value = median_of(*runs, &Trained::step_seconds)},
                            {.name = "s of its reference, " + so, .value = median(std::move(references))}};
}

// What a step through Terrace computes, beside one in memory.
std::vector<Count> cpu_counts(const std::vector<Trained>& runs, double limit) {
  const auto times = [](const Trained& step) {
    return (step.cpu_seconds + step.daemon_cpu_seconds) / step.reference_cpu_seconds;
  };
  return {{.name = "times the CPU of a step in memory, the trainer's and the daemon's",
           .value = median_of(runs, times),
           .limit = limit},
          {.name = "s of the trainer's CPU a step", .value = median_of(runs, &Trained::cpu_seconds)},
          {.name = "s of the daemon's CPU a step", .value = median_of(runs, &Trained::daemon_cpu_seconds)},
          {.name = "s of CPU a step in memory", .value = median_of(runs, &Trained::reference_cpu_seconds)}};
}

Result<void> run_in_dram(Bench& bench) {
  constexpr double kBar = 1.03;
  const auto one = train(bench.settings(), kInDram, processors(), 1);
  if (!one) return std::unexpected(one.error());
  const auto runs =
      train_in_turns(bench, "train.in_dram", kInDram, processors(), bench.either(kRuns, kRunsQuick), *one);
  if (!runs) return std::unexpected(runs.error());
  const auto one_left = with_one_left(bench, "train.in_dram", kInDram, *one,
                                      [](const Trained& step) -> Result<double> { return step.reference_seconds; });
  if (!one_left) return std::unexpected(one_left.error());
  std::vector<double> references;
  for (const Trained& run : *runs) references.push_back(run.reference_seconds);
  std::vector<Count> counts = cpu_counts(*runs, kBar);
  counts.push_back({.name = "MiB a step read from block",
                    .value = median_of(*runs, &Trained::block_read_bytes) / static_cast<double>(kMiB),
                    .limit = 0});
  counts.insert(counts.end(), one_left->begin(), one_left->end());
  bench.add(with({.bench = "train.in_dram",
                  .path = "train_gpt, all in DRAM, step time",
                  .unit = "s",
                  .reference = "in memory without Terrace, its optimizer after the backward pass",
                  .bar = kBar,
                  .better = Better::kLower,
                  .counts = std::move(counts)},
                 rounds_of(*runs, references)));
  return {};
}

// The larger of computing a step and moving its bytes over each link at the link's own speed.
struct Floor {
  double seconds = 0;
  const char* by = "";
};

Floor floor_of(const Trained& step, const DiskSpeed& disk, double memory_speed) {
  Floor floor{step.reference_seconds, "compute"};
  for (const auto& [seconds, by] :
       {Floor{step.block_read_bytes / disk.read, "reads from the disk"},
        Floor{step.block_write_bytes / disk.write, "writes to the disk"},
        Floor{step.h2d_bytes / memory_speed, "copies up"}, Floor{step.d2h_bytes / memory_speed, "copies down"}})
    if (seconds > floor.seconds) floor = {seconds, by};
  return floor;
}

Result<void> run_in_tiers(Bench& bench) {
  constexpr double kBar = 1.15;
  auto disk = DiskReference::make(bench.settings().disk, bench.either(kReferenceBytes, kReferenceBytesQuick));
  if (!disk) return std::unexpected(disk.error());
  auto memory = MemcpyReference::make(bench.either(256 * kMiB, 64 * kMiB));
  if (!memory) return std::unexpected(memory.error());
  std::vector<double> floors;
  std::vector<double> reads;
  std::vector<double> writes;
  std::map<std::string, int> bound_by;
  const auto measure_links = [&](const Trained& step) -> Result<Floor> {
    const auto speed = disk->measure();
    if (!speed) return std::unexpected(speed.error());
    const auto copied = memory->copy();
    if (!copied) return std::unexpected(copied.error());
    reads.push_back(speed->read / static_cast<double>(kMiB));
    writes.push_back(speed->write / static_cast<double>(kMiB));
    return floor_of(step, *speed, copied->bytes_per_second);
  };
  const auto keep_floor = [&](const Trained& step) -> Result<void> {
    const auto floor = measure_links(step);
    if (!floor) return std::unexpected(floor.error());
    floors.push_back(floor->seconds);
    ++bound_by[floor->by];
    return {};
  };
  const auto one = train(bench.settings(), kDemo, processors(), 1);
  if (!one) return std::unexpected(one.error());
  const auto runs =
      train_in_turns(bench, "train.in_tiers", kDemo, processors(), bench.either(kRuns, kRunsQuick), *one, keep_floor);
  if (!runs) return std::unexpected(runs.error());
  const auto one_left = with_one_left(bench, "train.in_tiers", kDemo, *one, [&](const Trained& step) -> Result<double> {
    const auto floor = measure_links(step);
    if (!floor) return std::unexpected(floor.error());
    return floor->seconds;
  });
  if (!one_left) return std::unexpected(one_left.error());
  const auto mib = [&](double Trained::* bytes) { return median_of(*runs, bytes) / static_cast<double>(kMiB); };
  std::vector<Count> counts = cpu_counts(*runs, kBar);
  const Count moved[] = {{.name = "MiB a step read from block", .value = mib(&Trained::block_read_bytes)},
                         {.name = "MiB a step written to block", .value = mib(&Trained::block_write_bytes)},
                         {.name = "MiB/s the disk reads", .value = median(reads)},
                         {.name = "MiB/s the disk writes", .value = median(writes)},
                         {.name = "s a step in memory", .value = median_of(*runs, &Trained::reference_seconds)}};
  counts.insert(counts.end(), std::begin(moved), std::end(moved));
  counts.insert(counts.end(), one_left->begin(), one_left->end());
  bench.add(with({.bench = "train.in_tiers",
                  .path = "train_gpt, tiers as in the demo, step time",
                  .unit = "s",
                  .reference = fmt::format(
                      "the larger of compute and bytes / measured link speed ({})",
                      std::ranges::max_element(bound_by, {}, [](const auto& each) { return each.second; })->first),
                  .bar = kBar,
                  .better = Better::kLower,
                  .counts = std::move(counts)},
                 rounds_of(*runs, floors)));
  return {};
}

Result<void> run(Bench& bench) {
  // What the machine's first run takes more than any after it is no row's.
  if (!bench.settings().quick)
    if (const auto warmed = train(bench.settings(), kInDram, processors(), 1); !warmed)
      return std::unexpected(warmed.error());
  if (const auto done = run_in_dram(bench); !done) return done;
  return run_in_tiers(bench);
}

std::vector<std::string> lacks(const Settings& settings) {
  std::vector<std::string> missing;
  if (!std::filesystem::exists(settings.examples / "train_gpt.py"))
    missing.push_back(fmt::format("{} has no train_gpt.py: name the Python examples' folder with --examples",
                                  settings.examples.string()));
  if (!output_of({settings.python, "-c", "import torch, terrace, matplotlib"}, true))
    missing.push_back(
        fmt::format("{} cannot import torch, terrace and matplotlib: name a Python that can with --python "
                    "(in the source tree, deploy/venv makes build/venv)",
                    settings.python));
  return missing;
}

}  // namespace

Suite train_suite() {
  return {.name = "train",
          .what = "a training through Terrace, against the same in memory",
          .rows = {"train.in_dram", "train.in_tiers"},
          .disk = {.full = kBlockBytes + kReferenceBytes, .quick = kBlockBytes + kReferenceBytesQuick},
          .lacks = &lacks,
          .run = run};
}

}  // namespace terrace::bench
