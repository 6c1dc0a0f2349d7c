// SPDX-License-Identifier: Apache-2.0
// How many requests the disk itself has at a time, whoever sent them: looked at every half millisecond.
#pragma once

#include <filesystem>
#include <thread>
#include <vector>

namespace terrace::bench {

class QueueSampler {
 public:
  // Looks at the device below `folder` until stop(), or the object's end.
  explicit QueueSampler(const std::filesystem::path& folder);
  QueueSampler(const QueueSampler&) = delete;
  QueueSampler& operator=(const QueueSampler&) = delete;
  ~QueueSampler() = default;
  // What was seen, in order; empty where the kernel shows no such device (a file system without one).
  std::vector<unsigned> stop();

 private:
  std::vector<unsigned> seen_;
  std::jthread thread_;  // first to go
};

// A disk's queue beside a reference's: the looks of all runs together, those before a run's first request and after its
// last aside.
struct QueueKept {
  unsigned reference_depth = 0;  // the reference's median, 1 at least; 0: nothing was seen
  unsigned depth = 0;            // ours
  // How often ours had the reference's median depth or more, of how often the reference had it; 1 at most.
  double share = 0;
};
QueueKept queue_kept(const std::vector<std::vector<unsigned>>& runs,
                     const std::vector<std::vector<unsigned>>& reference_runs);

}  // namespace terrace::bench
