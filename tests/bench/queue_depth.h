// SPDX-License-Identifier: Apache-2.0
// How many bytes the disk itself has at a time, whoever sent them: the requests that are under way, looked at every
// half millisecond, by what one has on average. The kernel merges requests for neighbouring bytes, and how many it
// merges differs from program to program.
#pragma once

#include <cstdint>
#include <filesystem>
#include <thread>
#include <vector>

#include "base/fd.h"

namespace terrace::bench {

// One run's looks at a device's queue.
struct QueueSeen {
  std::vector<unsigned> depths;  // requests, in order; empty where the kernel shows no such device
  std::uint64_t requests = 0;    // that ended between the first look and the last, reads and writes
  std::uint64_t bytes = 0;       // of those

  double request_bytes() const {
    return requests == 0 ? 0 : static_cast<double>(bytes) / static_cast<double>(requests);
  }
};

class QueueSampler {
 public:
  // Looks at the device below `folder` until stop(), or the object's end.
  explicit QueueSampler(const std::filesystem::path& folder);
  QueueSampler(const QueueSampler&) = delete;
  QueueSampler& operator=(const QueueSampler&) = delete;
  ~QueueSampler() = default;
  // What was seen.
  QueueSeen stop();

 private:
  Fd statistics_;
  QueueSeen seen_;       // of `requests` and `bytes` what the device had done before, until stop()
  std::jthread thread_;  // first to go
};

// One look of a device's statistics (Documentation/block/stat.rst).
struct DeviceStatistics {
  std::uint64_t requests = 0;  // ended, reads and writes
  std::uint64_t bytes = 0;     // of those
  unsigned in_flight = 0;      // begun and not ended, those among them that wait in the kernel's scheduler
};
// Of the text of a device's `stat`; false where it is none.
bool read_statistics(const char* text, DeviceStatistics& statistics);

// A disk's queue beside a reference's: the looks of all runs together, those before a run's first request and after its
// last aside; each is its requests times what one of that run has on average.
struct QueueKept {
  double reference_bytes = 0;          // the reference's median, one request at least; 0: nothing was seen
  unsigned depth = 0;                  // our median, in requests
  double request_bytes = 0;            // of ours, on average
  double reference_request_bytes = 0;  // of the reference's
  // How often each had the reference's median or more, less 2 % for what an average says of a single request.
  double of_time = 0;
  double reference_of_time = 0;
  double share = 0;  // the one of the other; 1 at most
};
QueueKept queue_kept(const std::vector<QueueSeen>& runs, const std::vector<QueueSeen>& reference_runs);

}  // namespace terrace::bench
