// SPDX-License-Identifier: Apache-2.0
#include "bench/fio.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

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
  const FioJob lay{.pattern = Pattern::kWrite,
                   .block_bytes = 1 << 20,
                   .bytes = file_bytes,
                   .depth = kDepthMax};  // as much locked memory as any run
  auto laid = fio.run(lay);
  if (!laid) {
    fio.registered_buffers_ = false;
    fio.huge_pages_ = true;
    laid = fio.run(lay);
  }
  if (!laid) return std::unexpected(laid.error());
  return fio;
}

Result<std::string> Fio::output_of_run(const FioJob& job) const {
  const std::uint64_t part_bytes = std::min(file_bytes_, job.bytes) / job.threads / job.block_bytes * job.block_bytes;
  return output_of({program_,
                    "--name=reference",
                    fmt::format("--filename={}", (folder_.path() / "file").string()),
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
                    huge_pages_ ? "--iomem=mmaphuge" : "--iomem=malloc",
                    "--registerfiles=1",
                    "--thread",
                    "--gtod_reduce=1",
                    "--norandommap",
                    "--randrepeat=0",
                    "--fallocate=none",
                    "--output-format=json"});
}

Result<FioFigures> Fio::run(const FioJob& job) const {
  QueueSampler sampler(folder_.path());
  auto said = output_of_run(job);
  if (!said && huge_pages_) {
    huge_pages_ = false;
    said = output_of_run(job);
  }
  FioFigures figures{.queue = sampler.stop()};
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

Result<FioJob> Fio::at_its_best(const FioJob& job, int rounds) const {
  std::vector<FioJob> jobs;
  for (const Load& load : kLoads) {
    jobs.push_back(job);
    jobs.back().depth = load.depth;
    jobs.back().threads = load.threads;
  }
  std::vector<std::vector<double>> speeds(jobs.size());
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      const auto figures = run(jobs[i]);
      if (!figures) return std::unexpected(figures.error());
      speeds[i].push_back(figures->gib_per_second);
    }
  }
  std::vector<double> medians;
  for (const auto& of_job : speeds) medians.push_back(median(of_job));
  return jobs[static_cast<std::size_t>(std::ranges::max_element(medians) - medians.begin())];
}

std::string Fio::described(const FioJob& job) const {
  return fmt::format("fio {} {}, depth {}{}{}{}", word(job.pattern), format_bytes(job.block_bytes), job.depth,
                     job.threads == 1 ? "" : fmt::format(" in {} threads", job.threads),
                     registered_buffers_ ? "" : ", without registered buffers", huge_pages_ ? ", in huge pages" : "");
}

std::string cannot_run_fio(const std::string& program) {
  const auto said = output_of({program, "--version"});
  if (said) return {};
  return fmt::format("{} does not run: install fio (Debian and Ubuntu: apt-get install fio), or name it with --fio",
                     program);
}

}  // namespace terrace::bench
