// SPDX-License-Identifier: Apache-2.0
#include "bench/fio.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "bench/rounds.h"

namespace terrace::bench {
namespace {

constexpr double kGiB = 1ull << 30;
constexpr double kAsGood = 0.98;

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
                   .depth = std::ranges::max(kDepths)};  // as much locked memory as any run
  auto laid = fio.run(lay);
  if (!laid) {
    fio.registered_buffers_ = false;
    laid = fio.run(lay);
  }
  if (!laid) return std::unexpected(laid.error());
  return fio;
}

Result<FioFigures> Fio::run(const FioJob& job) const {
  QueueSampler sampler(folder_.path());
  const auto said = output_of(
      {program_, "--name=reference", fmt::format("--filename={}", (folder_.path() / "file").string()),
       fmt::format("--rw={}", word(job.pattern)), fmt::format("--bs={}", job.block_bytes),
       fmt::format("--size={}", file_bytes_), fmt::format("--io_size={}", job.bytes),
       fmt::format("--iodepth={}", job.depth), "--direct=1", "--ioengine=io_uring",
       registered_buffers_ ? "--fixedbufs=1" : "--fixedbufs=0", "--registerfiles=1", "--thread", "--gtod_reduce=1",
       "--norandommap", "--randrepeat=0", "--random_generator=lfsr", "--fallocate=none", "--output-format=json"});
  FioFigures figures{.queue = sampler.stop()};
  if (!said) return std::unexpected(said.error());
  const auto json = nlohmann::json::parse(*said, nullptr, false);
  if (json.is_discarded() || !json.contains("jobs"))
    return fail(ErrorCode::kUnavailable, fmt::format("fio said what is not JSON: {}", said->substr(0, 200)));
  const auto& one = json["jobs"][0];
  double bytes = 0;
  double milliseconds = 0;
  for (const char* way : {"read", "write"}) {
    bytes += one[way]["io_bytes"].get<double>();
    milliseconds = std::max(milliseconds, one[way]["runtime"].get<double>());
  }
  if (bytes <= 0 || milliseconds <= 0 || one["error"] != 0)
    return fail(ErrorCode::kUnavailable, fmt::format("fio moved {} bytes in {} ms", bytes, milliseconds));
  const double busy = (one["usr_cpu"].get<double>() + one["sys_cpu"].get<double>()) / 100;
  figures.gib_per_second = bytes / kGiB / (milliseconds / 1e3);
  figures.cpu_seconds_per_gib = busy * milliseconds / 1e3 / (bytes / kGiB);
  return figures;
}

Result<unsigned> Fio::best_depth(FioJob job, int rounds) const {
  std::map<unsigned, std::vector<double>> speeds;
  for (int round = 0; round < rounds; ++round) {
    for (const unsigned depth : kDepths) {
      job.depth = depth;
      const auto figures = run(job);
      if (!figures) return std::unexpected(figures.error());
      speeds[depth].push_back(figures->gib_per_second);
    }
  }
  double most = 0;
  for (const auto& [depth, of_depth] : speeds) most = std::max(most, median(of_depth));
  for (const auto& [depth, of_depth] : speeds)
    if (median(of_depth) >= kAsGood * most) return depth;
  return kDepths[0];
}

std::string Fio::described(std::string_view job) const {
  return fmt::format("fio {}{}", job, registered_buffers_ ? "" : ", without registered buffers");
}

std::string cannot_run_fio(const std::string& program) {
  const auto said = output_of({program, "--version"});
  if (said) return {};
  return fmt::format("{} does not run: install fio (Debian and Ubuntu: apt-get install fio), or name it with --fio",
                     program);
}

}  // namespace terrace::bench
