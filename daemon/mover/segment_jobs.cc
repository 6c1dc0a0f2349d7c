// SPDX-License-Identifier: Apache-2.0
#include "mover/segment_jobs.h"

#include <utility>

#include "base/check.h"

namespace terrace::mover {

class SegmentJobs::Order final : public Job {
 public:
  Order(SegmentJobs& owner, tier::MappedTier& tier, const SegmentOrder& order)
      : owner_(owner), tier_(tier), order_(order) {}

  void run() override {
    switch (order_.kind) {
      case SegmentOrder::Kind::kAdd:
        result_ = add();
        break;
      case SegmentOrder::Kind::kRemove:
        result_ = tier_.remove(order_.session, order_.extent);
        break;
      case SegmentOrder::Kind::kStitch:
        result_ = tier_.stitch(order_.session, order_.extent, order_.pieces);
        break;
      case SegmentOrder::Kind::kUnstitch:
        tier_.unstitch(order_.session, order_.extent.offset);
        break;
    }
  }

  void done() override {
    owner_.done_.push_back({.order = order_, .result = std::move(result_)});
    owner_.jobs_.pop_front();  // deletes this
  }

 private:
  Result<void> add() {
    auto made = tier_.create_segment(order_.extent.bytes);
    if (!made) return std::unexpected(std::move(made.error()));
    if (auto installed = tier_.install(order_.session, order_.extent, std::move(*made)); !installed) return installed;
    tier_.map_pages(order_.session, order_.extent);
    return {};
  }

  SegmentJobs& owner_;
  tier::MappedTier& tier_;
  SegmentOrder order_;
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
