// SPDX-License-Identifier: Apache-2.0
// Segments that come and go: made, mapped and given up on the workers' slow lane, in order.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "mover/transfer.h"
#include "mover/workers.h"
#include "tier/mapped_tier.h"

namespace terrace::mover {

// The reactor's. Its destructor must not run while jobs are in flight.
class SegmentJobs {
 public:
  explicit SegmentJobs(Workers& workers);
  ~SegmentJobs();
  SegmentJobs(const SegmentJobs&) = delete;
  SegmentJobs& operator=(const SegmentJobs&) = delete;

  void start(tier::MappedTier& tier, const SegmentOrder& order);
  // Drops the session from every one of the tiers (null ones are passed over); nothing comes of it in take_done().
  void drop(std::span<tier::MappedTier* const> tiers, SessionId session);
  std::vector<SegmentDone> take_done();
  std::size_t in_flight() const { return jobs_.size(); }

 private:
  class Order;
  class Drop;
  void submit(std::unique_ptr<Job> job);

  Workers& workers_;
  std::deque<std::unique_ptr<Job>> jobs_;  // oldest first, which is also the first to be done
  std::vector<SegmentDone> done_;
};

}  // namespace terrace::mover
