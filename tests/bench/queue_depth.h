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

// The depth that the queue had for at least `share` of the looks, those before the first request and after the last
// aside, and 1 at least: a queue that runs empty now and then is to be kept from it. 0 where nothing was seen.
unsigned depth_held(std::vector<unsigned> seen, double share);

// The share of the looks at which the queue had at least `depth`; 0 where there were none.
double share_at(const std::vector<unsigned>& seen, unsigned depth);

}  // namespace terrace::bench
