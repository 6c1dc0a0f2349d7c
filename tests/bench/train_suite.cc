// SPDX-License-Identifier: Apache-2.0
// The training of the Python examples (train_gpt.py): all of it in DRAM against the same without Terrace, and with the
// demo's tiers against what computing, or the slowest link, takes at least.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>

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
  double h2d_bytes = 0;          // all of the run's, creation included
  double d2h_bytes = 0;
  double block_read_bytes = 0;
  double block_write_bytes = 0;
};

struct Tiers {
  const char* device;
  const char* memory;
  const char* block;
};
constexpr Tiers kInDram{"1GiB", "1GiB", "2GiB"};
constexpr Tiers kDemo{"64MiB", "128MiB", "2GiB"};

Result<Trained> train(const Settings& settings, const Tiers& tiers, int steps) {
  auto folder = Folder::make(settings.disk);
  if (!folder) return std::unexpected(folder.error());
  const std::filesystem::path file = folder->path() / "result.json";
  auto temporary = Folder::make(std::filesystem::temp_directory_path());  // PyTorch leaves folders there
  if (!temporary) return std::unexpected(temporary.error());
  std::vector<std::string> command{"env", "TMPDIR=" + temporary->path().string(), settings.python, "-B",
                                   (settings.examples / "train_gpt.py").string()};
  command.insert(command.end(), {"--terraced", settings.terraced, "--steps", std::to_string(steps)});
  command.insert(command.end(), {"--json", file.string(), "--block", folder->path().string()});
  command.insert(command.end(), {"--device", tiers.device, "--memory", tiers.memory, "--block-size", tiers.block});
  if (settings.quick) command.insert(command.end(), {"--batch", "1"});
  if (const auto ran = output_of(command); !ran) return std::unexpected(ran.error());
  std::ifstream stream(file);
  const auto said = nlohmann::json::parse(stream, nullptr, false);
  if (said.is_discarded()) return fail(ErrorCode::kInternal, "train_gpt.py wrote no numbers");
  if (!said.value("losses_equal", false)) return fail(ErrorCode::kDataLoss, "the losses of train_gpt.py differ");
  return Trained{.step_seconds = said.at("step_seconds"),
                 .reference_seconds = said.at("reference_step_seconds"),
                 .h2d_bytes = said.at("h2d_bytes"),
                 .d2h_bytes = said.at("d2h_bytes"),
                 .block_read_bytes = said.at("block_read_bytes"),
                 .block_write_bytes = said.at("block_write_bytes")};
}

// The example trains through Terrace and then in memory, so that runs one after another take turns: a round's reference
// is that of the run before.
Result<std::vector<Trained>> train_in_turns(Bench& bench, const char* what, const Tiers& tiers) {
  const int runs = bench.either(4, 2);
  std::vector<Trained> all;
  for (int run = 0; run < runs; ++run) {
    // The first has one step, which tells apart what creating the tensors moves.
    const auto trained = train(bench.settings(), tiers, run == 0 ? 1 : bench.either(6, 2));
    if (!trained) return std::unexpected(trained.error());
    bench.say(fmt::format("{}: run {} of {}", what, run + 1, runs));
    all.push_back(*trained);
  }
  return all;
}

Result<void> run_in_dram(Bench& bench) {
  const auto runs = train_in_turns(bench, "train.in_dram", kInDram);
  if (!runs) return std::unexpected(runs.error());
  std::vector<Round> rounds;
  for (std::size_t i = 1; i < runs->size(); ++i)
    rounds.push_back({(*runs)[i - 1].reference_seconds, (*runs)[i].step_seconds, (*runs)[i].reference_seconds});
  const double block = (runs->back().block_read_bytes - runs->front().block_read_bytes) / static_cast<double>(kMiB);
  bench.add(with({.bench = "train.in_dram",
                  .path = "train_gpt, all in DRAM, step time",
                  .unit = "s",
                  .reference = "in memory without Terrace",
                  .bar = 1.03,
                  .better = Better::kLower,
                  .counts = {{.name = "MiB read from block in the steps", .value = block, .limit = 0}}},
                 rounds));
  return {};
}

// The larger of computing a step and moving its bytes over each link at the link's own speed.
struct Floor {
  double seconds = 0;
  const char* by = "";
};

Floor floor_of(double compute_seconds, const Trained& step, const DiskSpeed& disk, double memory_speed) {
  Floor floor{compute_seconds, "compute"};
  for (const auto& [seconds, by] :
       {Floor{step.block_read_bytes / disk.read, "reads from the disk"},
        Floor{step.block_write_bytes / disk.write, "writes to the disk"},
        Floor{step.h2d_bytes / memory_speed, "copies up"}, Floor{step.d2h_bytes / memory_speed, "copies down"}})
    if (seconds > floor.seconds) floor = {seconds, by};
  return floor;
}

// What a step moves: what more steps moved more.
Trained a_step(const Trained& one, const Trained& many, int steps) {
  const auto each = [&](double Trained::* bytes) { return (many.*bytes - one.*bytes) / (steps - 1); };
  return {.step_seconds = many.step_seconds,
          .reference_seconds = many.reference_seconds,
          .h2d_bytes = each(&Trained::h2d_bytes),
          .d2h_bytes = each(&Trained::d2h_bytes),
          .block_read_bytes = each(&Trained::block_read_bytes),
          .block_write_bytes = each(&Trained::block_write_bytes)};
}

Result<void> run_in_tiers(Bench& bench) {
  const std::uint64_t file = bench.either(512 * kMiB, 64 * kMiB);
  const auto disk = measure_disk(bench.settings().disk, file);
  if (!disk) return std::unexpected(disk.error());
  auto memory = MemcpyReference::make(bench.either(256 * kMiB, 64 * kMiB));
  if (!memory) return std::unexpected(memory.error());
  const auto copied = memory->copy();
  if (!copied) return std::unexpected(copied.error());
  const double memory_speed = copied->bytes_per_second;

  const auto runs = train_in_turns(bench, "train.in_tiers", kDemo);
  if (!runs) return std::unexpected(runs.error());
  const Trained& one = runs->front();
  std::vector<Round> rounds;
  Floor last;
  for (std::size_t i = 1; i < runs->size(); ++i) {
    const Trained step = a_step(one, (*runs)[i], bench.either(6, 2));
    const Floor before = floor_of((*runs)[i - 1].reference_seconds, step, *disk, memory_speed);
    last = floor_of(step.reference_seconds, step, *disk, memory_speed);
    rounds.push_back({before.seconds, step.step_seconds, last.seconds});
  }
  const Trained step = a_step(one, runs->back(), bench.either(6, 2));
  const auto mib = [](double bytes) { return bytes / static_cast<double>(kMiB); };
  bench.add(with({.bench = "train.in_tiers",
                  .path = "train_gpt, tiers as in the demo, step time",
                  .unit = "s",
                  .reference = fmt::format("the larger of compute and bytes / measured link speed ({})", last.by),
                  .bar = 1.15,
                  .better = Better::kLower,
                  .counts = {{.name = "MiB a step read from block", .value = mib(step.block_read_bytes)},
                             {.name = "MiB a step written to block", .value = mib(step.block_write_bytes)},
                             {.name = "MiB/s the disk reads", .value = mib(disk->read)},
                             {.name = "MiB/s the disk writes", .value = mib(disk->write)},
                             {.name = "s a step in memory", .value = step.reference_seconds}}},
                 rounds));
  return {};
}

Result<void> run(Bench& bench) {
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
          .disk = {.full = 2 * kGiB, .quick = 2 * kGiB},
          .lacks = &lacks,
          .run = run};
}

}  // namespace terrace::bench
