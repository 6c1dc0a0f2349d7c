// SPDX-License-Identifier: Apache-2.0
#include "bench/queue_depth.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <iterator>

namespace terrace::bench {
namespace {

constexpr std::chrono::microseconds kPeriod{500};

constexpr std::uint64_t kSectorBytes = 512;  // whatever the device's are
constexpr double kReached = 0.98;

Fd open_statistics(const std::filesystem::path& folder) {
  struct stat state{};
  if (stat(folder.c_str(), &state) != 0) return Fd();
  const std::string path = fmt::format("/sys/dev/block/{}:{}/stat", major(state.st_dev), minor(state.st_dev));
  return Fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
}

bool look(const Fd& file, DeviceStatistics& statistics) {
  std::array<char, 512> text{};
  return pread(file.get(), text.data(), text.size() - 1, 0) > 0 && read_statistics(text.data(), statistics);
}

// Of all runs, each without its idle ends.
struct Looks {
  std::vector<double> bytes;     // sorted
  std::vector<unsigned> depths;  // sorted
  double request_bytes = 0;
};

Looks looks_of(const std::vector<QueueSeen>& runs) {
  const auto busy = [](unsigned depth) { return depth > 0; };
  Looks looks;
  QueueSeen all;
  for (const QueueSeen& run : runs) {
    if (run.requests == 0 || run.bytes == 0) continue;
    const auto first = std::ranges::find_if(run.depths, busy);
    const auto last = std::find_if(run.depths.rbegin(), std::make_reverse_iterator(first), busy).base();
    looks.depths.insert(looks.depths.end(), first, last);
    std::transform(first, last, std::back_inserter(looks.bytes),
                   [&](unsigned depth) { return depth * run.request_bytes(); });
    all.requests += run.requests;
    all.bytes += run.bytes;
  }
  looks.request_bytes = all.request_bytes();
  std::ranges::sort(looks.bytes);
  std::ranges::sort(looks.depths);
  return looks;
}

double share_at(const std::vector<double>& sorted, double bytes) {
  return static_cast<double>(sorted.end() - std::ranges::lower_bound(sorted, kReached * bytes)) /
         static_cast<double>(sorted.size());
}

}  // namespace

bool read_statistics(const char* text, DeviceStatistics& statistics) {
  constexpr const char* kFields = "%" SCNu64 " %*u %" SCNu64 " %*u %" SCNu64 " %*u %" SCNu64 " %*u %u";
  std::uint64_t reads = 0;
  std::uint64_t sectors_read = 0;
  std::uint64_t writes = 0;
  std::uint64_t sectors_written = 0;
  // NOLINTNEXTLINE(cert-err34-c): the kernel writes numbers
  if (std::sscanf(text, kFields, &reads, &sectors_read, &writes, &sectors_written, &statistics.in_flight) != 5)
    return false;
  statistics.requests = reads + writes;
  statistics.bytes = (sectors_read + sectors_written) * kSectorBytes;
  return true;
}

QueueSampler::QueueSampler(const std::filesystem::path& folder) : statistics_(open_statistics(folder)) {
  DeviceStatistics before;
  if (!statistics_ || !look(statistics_, before)) return;
  seen_.requests = before.requests;
  seen_.bytes = before.bytes;
  thread_ = std::jthread([this](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      if (DeviceStatistics now; look(statistics_, now)) seen_.depths.push_back(now.in_flight);
      std::this_thread::sleep_for(kPeriod);
    }
  });
}

QueueSeen QueueSampler::stop() {
  thread_.request_stop();
  if (!thread_.joinable()) return {};
  thread_.join();
  DeviceStatistics after;
  if (!look(statistics_, after)) return {};
  return {.depths = std::move(seen_.depths),
          .requests = after.requests - seen_.requests,
          .bytes = after.bytes - seen_.bytes};
}

QueueKept queue_kept(const std::vector<QueueSeen>& runs, const std::vector<QueueSeen>& reference_runs) {
  const Looks ours = looks_of(runs);
  const Looks references = looks_of(reference_runs);
  if (ours.bytes.empty() || references.bytes.empty()) return {};
  // Of a reference that is idle half of the time one request is asked for.
  const double middle = references.bytes[references.bytes.size() / 2];
  const double bytes = middle > 0 ? middle : references.request_bytes;
  const double of_time = share_at(ours.bytes, bytes);
  const double reference_of_time = share_at(references.bytes, bytes);
  return {.reference_bytes = bytes,
          .depth = ours.depths[ours.depths.size() / 2],
          .request_bytes = ours.request_bytes,
          .reference_request_bytes = references.request_bytes,
          .of_time = of_time,
          .reference_of_time = reference_of_time,
          .share = std::min(1.0, of_time / reference_of_time)};
}

}  // namespace terrace::bench
