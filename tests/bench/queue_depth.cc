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
#include <cstdio>
#include <iterator>

#include "base/fd.h"

namespace terrace::bench {
namespace {

constexpr std::chrono::microseconds kPeriod{500};

// Begun and not ended, those among them that wait in the kernel's scheduler: the ninth figure of the device's `stat`
// (Documentation/block/stat.rst).
constexpr const char* kInFlight = "%*u %*u %*u %*u %*u %*u %*u %*u %u";

Fd open_statistics(const std::filesystem::path& folder) {
  struct stat state{};
  if (stat(folder.c_str(), &state) != 0) return Fd();
  const std::string path = fmt::format("/sys/dev/block/{}:{}/stat", major(state.st_dev), minor(state.st_dev));
  return Fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
}

// Of all runs, each without its idle ends.
std::vector<unsigned> sorted_looks(const std::vector<std::vector<unsigned>>& runs) {
  const auto busy = [](unsigned depth) { return depth > 0; };
  std::vector<unsigned> looks;
  for (const std::vector<unsigned>& run : runs) {
    const auto first = std::ranges::find_if(run, busy);
    const auto last = std::find_if(run.rbegin(), std::make_reverse_iterator(first), busy).base();
    looks.insert(looks.end(), first, last);
  }
  std::ranges::sort(looks);
  return looks;
}

double share_at(const std::vector<unsigned>& sorted, unsigned depth) {
  return static_cast<double>(sorted.end() - std::ranges::lower_bound(sorted, depth)) /
         static_cast<double>(sorted.size());
}

}  // namespace

QueueSampler::QueueSampler(const std::filesystem::path& folder) {
  Fd statistics = open_statistics(folder);
  if (!statistics) return;
  thread_ = std::jthread([this, file = std::move(statistics)](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      std::array<char, 512> text{};
      unsigned in_flight = 0;
      if (pread(file.get(), text.data(), text.size() - 1, 0) > 0 &&
          std::sscanf(text.data(), kInFlight, &in_flight) == 1)  // NOLINT(cert-err34-c): the kernel writes numbers
        seen_.push_back(in_flight);
      std::this_thread::sleep_for(kPeriod);
    }
  });
}

std::vector<unsigned> QueueSampler::stop() {
  thread_.request_stop();
  if (thread_.joinable()) thread_.join();
  return std::move(seen_);
}

QueueKept queue_kept(const std::vector<std::vector<unsigned>>& runs,
                     const std::vector<std::vector<unsigned>>& reference_runs) {
  const std::vector<unsigned> ours = sorted_looks(runs);
  const std::vector<unsigned> references = sorted_looks(reference_runs);
  if (ours.empty() || references.empty()) return {};
  const unsigned depth = std::max(1U, references[references.size() / 2]);
  return {.reference_depth = depth,
          .depth = ours[ours.size() / 2],
          .share = std::min(1.0, share_at(ours, depth) / share_at(references, depth))};
}

}  // namespace terrace::bench
