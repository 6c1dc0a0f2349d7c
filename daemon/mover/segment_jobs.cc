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
    owner_.done_.push_back({.order = order_, .result = std::move(result_)});
    owner_.jobs_.pop_front();  // deletes this
  }

 private:
  SegmentJobs& owner_;
  tier::MappedTier& tier_;
  SegmentOrder order_;
  Result<Fd> made_;
  Result<void> result_;
};

class SegmentJobs::Drop final : public Job {
 public:
  Drop(SegmentJobs& owner, std::span<tier::MappedTier* const> tiers, SessionId session)
      : owner_(owner), tiers_(tiers.begin(), tiers.end()), session_(session) {}

  void run() override {
    for (tier::MappedTier* tier : tiers_) {
      if (tier != nullptr) tier->drop(session_);
    }
  }
  void done() override { owner_.jobs_.pop_front(); }  // deletes this

 private:
  SegmentJobs& owner_;
  std::vector<tier::MappedTier*> tiers_;
  SessionId session_;
};

SegmentJobs::SegmentJobs(Workers& workers) : workers_(workers) {}

SegmentJobs::~SegmentJobs() { TERRACE_CHECK(jobs_.empty()); }

void SegmentJobs::submit(std::unique_ptr<Job> job) {
  jobs_.push_back(std::move(job));
  workers_.submit(*jobs_.back(), Workers::Lane::kSegment);
}

void SegmentJobs::start(tier::MappedTier& tier, const SegmentOrder& order) {
  submit(std::make_unique<Order>(*this, tier, order));
}

void SegmentJobs::drop(std::span<tier::MappedTier* const> tiers, SessionId session) {
  submit(std::make_unique<Drop>(*this, tiers, session));
}

std::vector<SegmentDone> SegmentJobs::take_done() { return std::exchange(done_, {}); }

}  // namespace terrace::mover
