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

unsigned depth_held(std::vector<unsigned> seen, double share) {
  const auto idle = [](unsigned depth) { return depth == 0; };
  seen.erase(std::find_if_not(seen.rbegin(), seen.rend(), idle).base(), seen.end());
  seen.erase(seen.begin(), std::ranges::find_if_not(seen, idle));
  if (seen.empty()) return 0;
  std::ranges::sort(seen);
  const auto rest = static_cast<std::size_t>((1 - share) * static_cast<double>(seen.size()) + 1e-9);
  return std::max(seen[std::min(rest, seen.size() - 1)], 1U);
}

double share_at(const std::vector<unsigned>& seen, unsigned depth) {
  if (seen.empty()) return 0;
  const auto deep = std::ranges::count_if(seen, [&](unsigned each) { return each >= depth; });
  return static_cast<double>(deep) / static_cast<double>(seen.size());
}

}  // namespace terrace::bench
