// SPDX-License-Identifier: Apache-2.0
#include "bench/fio.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/bytes.h"
#include "bench/rounds.h"

namespace terrace::bench {
namespace {

constexpr double kGiB = 1ull << 30;

struct Load {
  unsigned depth;
  unsigned threads;
};
// By what they have under way, and then by threads.
constexpr Load kLoads[] = {{4, 1},  {8, 1},  {4, 2}, {16, 1}, {8, 2},  {4, 4},
                           {32, 1}, {16, 2}, {8, 4}, {64, 1}, {32, 2}, {16, 4}};
constexpr unsigned kDepthMax = 64;
constexpr unsigned kThreadsMax = 4;
constexpr double kAsGood = 0.98;
constexpr unsigned kSearchSecondsMax = 2;  // a run: on a slow disk all of them are to take minutes

const char* word(Pattern pattern) {
  switch (pattern) {
    case Pattern::kRead:
      return "read";
    case Pattern::kWrite:
      return "write";
    case Pattern::kRandomRead:
      return "randread";
    case Pattern::kMixed:
      return "rw";
  }
  return "";
}

}  // namespace

Result<Fio> Fio::prepare(const std::string& program, const std::filesystem::path& disk, std::uint64_t file_bytes) {
  Fio fio;
  fio.program_ = program;
  fio.file_bytes_ = file_bytes;
  auto folder = Folder::make(disk);
  if (!folder) return std::unexpected(folder.error());
  fio.folder_ = std::move(*folder);
  FioJob lay{.pattern = Pattern::kWrite,
             .block_bytes = 1 << 20,
             .bytes = file_bytes,
             .depth = kDepthMax};  // as much locked memory as any run
  Result<FioFigures> laid;
  for (const auto& [registered, huge] : {std::pair(true, true), {true, false}, {false, true}, {false, false}}) {
    fio.registered_buffers_ = registered;
    lay.huge_pages = huge;
    laid = fio.run(lay, registered || huge);
    if (laid) return fio;
  }
  return std::unexpected(laid.error());
}

FioJob Fio::placed(FioJob job) const {
  // The load with the most memory that is fixed, of 1 MiB at a time.
  const FioJob most{.pattern = Pattern::kRead,
                    .block_bytes = 1 << 20,
                    .bytes = kDepthMax << 20,
                    .depth = kDepthMax / kThreadsMax,
                    .threads = kThreadsMax,
                    .huge_pages = true};
  job.huge_pages = run(most, true).has_value();
  return job;
}

Result<std::string> Fio::output_of_run(const FioJob& job, bool trial) const {
  const std::uint64_t part_bytes = std::min(file_bytes_, job.bytes) / job.threads / job.block_bytes * job.block_bytes;
  return output_of({program_,
                    "--name=reference",
                    fmt::format("--filename={}", file().string()),
                    fmt::format("--rw={}", word(job.pattern)),
                    fmt::format("--bs={}", job.block_bytes),
                    fmt::format("--size={}", part_bytes),
                    fmt::format("--io_size={}", job.bytes / job.threads),
                    fmt::format("--numjobs={}", job.threads),
                    fmt::format("--offset_increment={}", part_bytes),
                    fmt::format("--iodepth={}", job.depth),
                    "--direct=1",
                    "--ioengine=io_uring",
                    registered_buffers_ ? "--fixedbufs=1" : "--fixedbufs=0",
                    job.huge_pages ? "--iomem=mmaphuge" : "--iomem=malloc",
                    fmt::format("--runtime={}", job.seconds_max),
                    "--registerfiles=1",
                    "--thread",
                    "--gtod_reduce=1",
                    "--norandommap",
                    "--randrepeat=0",
                    "--fallocate=none",
                    "--output-format=json"},
                   trial);
}

Result<FioFigures> Fio::run(const FioJob& job, bool trial) const {
  QueueSampler sampler(folder_.path());
  const auto said = output_of_run(job, trial);
  FioFigures figures{.queue = sampler.stop()};
  if (!said && job.huge_pages)
    return fail(said.error().code, said.error().message +
                                       ": it had huge pages for its buffers when the row began; "
                                       "reserve more (sysctl vm.nr_hugepages)");
  if (!said) return std::unexpected(said.error());
  const auto json = nlohmann::json::parse(*said, nullptr, false);
  if (json.is_discarded() || !json.contains("jobs"))
    return fail(ErrorCode::kUnavailable, fmt::format("fio said what is not JSON: {}", said->substr(0, 200)));
  double bytes = 0;
  double milliseconds = 0;
  double cpu_milliseconds = 0;
  for (const auto& thread : json["jobs"]) {
    double took = 0;
    for (const char* way : {"read", "write"}) {
      bytes += thread[way]["io_bytes"].get<double>();
      took = std::max(took, thread[way]["runtime"].get<double>());
    }
    if (thread["error"] != 0)
      return fail(ErrorCode::kUnavailable, fmt::format("fio: error {}", thread["error"].dump()));
    milliseconds = std::max(milliseconds, took);
    cpu_milliseconds += (thread["usr_cpu"].get<double>() + thread["sys_cpu"].get<double>()) / 100 * took;
  }
  if (bytes <= 0 || milliseconds <= 0)
    return fail(ErrorCode::kUnavailable, fmt::format("fio moved {} bytes in {} ms", bytes, milliseconds));
  figures.gib_per_second = bytes / kGiB / (milliseconds / 1e3);
  figures.cpu_seconds_per_gib = cpu_milliseconds / 1e3 / (bytes / kGiB);
  return figures;
}

Result<FioJob> Fio::at_its_best(const FioJob& job, int rounds,
                                const std::function<void(const std::string&)>& say) const {
  FioJob tried = placed(job);
  tried.seconds_max = kSearchSecondsMax;
  std::vector<unsigned> depths;
  std::vector<double> speeds;
  for (const Load& load : kLoads) {
    const unsigned depth = load.depth * load.threads;
    if (!depths.empty() && depth != depths.back() && levels_off(depths, speeds)) break;
    tried.depth = load.depth;
    tried.threads = load.threads;
    std::vector<double> of_load;
    for (int round = 0; round < rounds; ++round) {
      const auto figures = run(tried);
      if (!figures) return std::unexpected(figures.error());
      of_load.push_back(figures->gib_per_second);
    }
    depths.push_back(depth);
    speeds.push_back(median(of_load));
    say(fmt::format("{}: {:.3f} GiB/s", described(tried), speeds.back()));
  }
  const Load& best = kLoads[first_of_the_best(speeds)];
  tried.depth = best.depth;
  tried.threads = best.threads;
  tried.seconds_max = job.seconds_max;
  return tried;
}

std::size_t first_of_the_best(std::span<const double> speeds) {
  const double enough = kAsGood * std::ranges::max(speeds);
  return static_cast<std::size_t>(std::ranges::find_if(speeds, [&](double speed) { return speed >= enough; }) -
                                  speeds.begin());
}

bool levels_off(std::span<const unsigned> depths, std::span<const double> speeds) {
  std::vector<double> best;  // of each depth
  for (std::size_t i = 0; i < depths.size(); ++i) {
    if (i == 0 || depths[i] != depths[i - 1]) best.push_back(0);
    best.back() = std::max(best.back(), speeds[i]);
  }
  if (best.size() < 3) return false;
  const auto last_two = best.end() - 2;
  return *std::max_element(last_two, best.end()) * kAsGood <= *std::max_element(best.begin(), last_two);
}

std::string Fio::described(const FioJob& job) const {
  return fmt::format("fio {} {}, depth {}{}{}{}", word(job.pattern), format_bytes(job.block_bytes), job.depth,
                     job.threads == 1 ? "" : fmt::format(" in {} threads", job.threads),
                     registered_buffers_ ? "" : ", without registered buffers",
                     job.huge_pages ? ", in huge pages" : "");
}

std::string cannot_run_fio(const std::string& program) {
  if (!output_of({program, "--version"}, true))
    return fmt::format("{} does not run: install fio (Debian and Ubuntu: apt-get install fio), or name it with --fio",
                       program);
  if (output_of({program, "--name=ring", "--filename=/dev/zero", "--rw=read", "--bs=4k", "--size=4k", "--thread",
                 "--ioengine=io_uring", "--output-format=json"},
                true))
    return {};
  return fmt::format(
      "{} cannot read by io_uring: name one that was built with it with --fio, and see that the kernel allows it "
      "(sysctl kernel.io_uring_disabled is 0, and a container's seccomp profile lets it through)",
      program);
}

}  // namespace terrace::bench
