// SPDX-License-Identifier: Apache-2.0
// fio at its best: io_uring, O_DIRECT, fixed buffers and files, no clock reads, on a file of its own on the same disk.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/leftovers.h"
#include "bench/queue_depth.h"
#include "terrace/error.h"

namespace terrace::bench {

enum class Pattern { kRead, kWrite, kRandomRead, kMixed };  // kMixed: half of each, in order

struct FioJob {
  Pattern pattern{};
  std::uint64_t block_bytes = 0;
  std::uint64_t bytes = 0;   // moved, of both kinds together, in so much of the file; more than it has: it begins again
  unsigned depth = 0;        // of each thread
  unsigned threads = 1;      // each on its part of the file
  bool huge_pages = false;   // where its buffers lie
  unsigned seconds_max = 0;  // then it ends, with fewer bytes; 0: it moves all
};

struct FioFigures {
  double gib_per_second = 0;
  double cpu_seconds_per_gib = 0;  // of its threads, the kernel on their behalf included
  QueueSeen queue;                 // the device's, while it ran
};

class Fio {
 public:
  // Lays the file out on the disk, written once in full. `program`: fio's binary. Where so much memory may not be
  // locked, fio's buffers are not registered, then and in every run.
  static Result<Fio> prepare(const std::string& program, const std::filesystem::path& disk, std::uint64_t file_bytes);

  // `trial`: what fio complains of is not shown, since something else is tried where it fails.
  Result<FioFigures> run(const FioJob& job, bool trial = false) const;
  // The job with its buffers in huge pages, as the daemon has its tiers, where there are enough for any load just now,
  // and else in ordinary ones: for all runs of a row.
  FioJob placed(FioJob job) const;
  // The job, placed, at the least deep of kLoads that gives the most but for 2 %, by medians of `rounds`; `job` has all
  // but depth and threads. More threads than one, since on many machines one cannot ask for all that a disk gives.
  // Deeper ones are not tried after two depths that give no more, and a run ends after two seconds. `say` hears of each
  // load.
  Result<FioJob> at_its_best(const FioJob& job, int rounds, const std::function<void(const std::string&)>& say) const;

  // The file that all runs are on.
  std::filesystem::path file() const { return folder_.path() / "file"; }
  // What a row says of its reference: the job, and what this machine denies it.
  std::string described(const FioJob& job) const;

 private:
  Result<std::string> output_of_run(const FioJob& job, bool trial) const;

  std::string program_;
  bool registered_buffers_ = true;
  Folder folder_;
  std::uint64_t file_bytes_ = 0;
};

// The memory of its buffers.
constexpr std::uint64_t goes_round(const FioJob& job) { return job.block_bytes * job.depth * job.threads; }

// Of loads that were tried in this order: the first that is at most 2 % slower than the fastest.
std::size_t first_of_the_best(std::span<const double> speeds);
// Whether the last two depths gave no more than those before them, but for 2 %; `depths` is ascending, with some
// several times.
bool levels_off(std::span<const unsigned> depths, std::span<const double> speeds);

// What `program` is short of, for Suite::lacks: empty where it runs.
std::string cannot_run_fio(const std::string& program);

}  // namespace terrace::bench
