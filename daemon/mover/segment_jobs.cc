// SPDX-License-Identifier: Apache-2.0
#include "mover/segment_jobs.h"

#include <utility>

#include "base/check.h"
#include "base/fd.h"

namespace terrace::mover {

class SegmentJobs::Order final : public Job {
 public:
  Order(SegmentJobs& owner, tier::MappedTier& tier, const SegmentOrder& order)
      : owner_(owner), tier_(tier), order_(order) {}

  void run() override {
    if (order_.kind == SegmentOrder::Kind::kAdd) {
      made_ = tier_.create_segment(order_.extent.bytes);
    } else {
      result_ = tier_.remove(order_.session, order_.extent);
    }
  }

  void done() override {
    if (order_.kind == SegmentOrder::Kind::kAdd) {
      if (made_) {
        result_ = tier_.install(order_.session, order_.extent, std::move(*made_));
      } else {
        result_ = std::unexpected(std::move(made_.error()));
      }
    }
    owner_.ended(order_, std::move(result_));  // deletes this
  }

 private:
  SegmentJobs& owner_;
  tier::MappedTier& tier_;
  SegmentOrder order_;
  Result<Fd> made_;
  Result<void> result_;
};

SegmentJobs::SegmentJobs(Workers& workers) : workers_(workers) {}

SegmentJobs::~SegmentJobs() { TERRACE_CHECK(jobs_.empty()); }

void SegmentJobs::start(tier::MappedTier& tier, const SegmentOrder& order) {
  jobs_.push_back(std::make_unique<Order>(*this, tier, order));
  workers_.submit(*jobs_.back(), Workers::Lane::kSegment);
}

void SegmentJobs::ended(const SegmentOrder& order, Result<void> result) {
  done_.push_back({.order = order, .result = std::move(result)});
  jobs_.pop_front();
}

std::vector<SegmentDone> SegmentJobs::take_done() { return std::exchange(done_, {}); }

}  // namespace terrace::mover
