// SPDX-License-Identifier: Apache-2.0
// Uses an engine that came from nobody knows where: everything that can be asked of its tensors is asked, copies and
// segments are as good as done, and the laws are checked again and again.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "engine/engine.h"
#include "shm/layout.h"

namespace terrace::fuzz {

class EngineDriver {
 public:
  EngineDriver(engine::Engine& engine, const engine::Options& options) : engine_(engine) {
    for (const engine::TierOptions& tier : options.tiers) {
      if (tier.kind == tier::Kind::kMemory) places_.push_back(shm::kPlaceHost);
      if (tier.kind == tier::Kind::kDevice) places_.push_back(shm::kPlaceDevice0 + devices_++);
    }
  }

  // Until there are no sessions.
  void use_up() {
    drain();
    engine_.check_invariants();
    const engine::Status status = std::get<engine::Status>(*ask({}, engine::GetStatus{}));
    for (const engine::SessionStatus& session : status.sessions) use(session.session);
    for (const engine::SessionStatus& session : status.sessions) {
      engine_.session_died(now_, session.session);
      drain();
    }
    TERRACE_CHECK(std::get<engine::Status>(*ask({}, engine::GetStatus{})).sessions.empty());
  }
  // One session's tensors, until there are none.
  void use(SessionId session) {
    std::vector<Handle> handles;
    for (const engine::TensorInfo& tensor : tensors(session)) handles.push_back(tensor.handle);
    for (const Handle handle : std::span(handles).first(std::min(handles.size(), kUsedMax))) {
      for (const std::uint32_t place : places_)
        for (const shm::Mode mode : {shm::Mode::kRead, shm::Mode::kOverwrite}) {
          const auto leased = ask(session, engine::Acquire{place, mode, {handle}});
          if (leased) ask(session, engine::Release{mode, {handle}});
        }
      ask(session, engine::Unpin{{handle}, true});
      ask(session, engine::Move{shm::kPlaceBlock, {handle}});
      ask(session, engine::Prefetch{places_.front(), {handle}});
      ask(session, engine::DontNeed{{handle}});
    }
    ask(session, engine::MarkStep{});
    engine::TensorSpec fresh;
    fresh.name = "a tensor of nobody else's";
    fresh.bytes = 1;
    ask(session, engine::CreateTensors{{fresh}});
    const auto deleted = ask(session, engine::DeleteTensors{handles});
    TERRACE_CHECK(deleted.has_value() || deleted.error().code == ErrorCode::kPermissionDenied);  // of a share, to read
    engine_.lease_ended(now_, session);
    drain();
    engine_.check_invariants();
  }
  std::vector<engine::TensorInfo> tensors(SessionId session) {
    return std::get<engine::TensorList>(*ask(session, engine::ListTensors{})).tensors;
  }
  // The answer, which comes by the deadline: before the next input, where nothing takes time.
  Result<engine::ReplyBody> ask(SessionId session, engine::Body body) {
    const RequestId id{++last_request_};
    constexpr Duration kPatience(1'000);
    submit(id, session, std::move(body), kPatience);
    if (!replies_.contains(id)) pass(kPatience);
    TERRACE_CHECK(replies_.contains(id));
    return std::move(replies_.extract(id).mapped());
  }
  // Takes what the engine says; does what it wants done, unless that is held back.
  void drain() {
    do {
      if (checks_ && ++inputs_ % kCheckEvery == 0) engine_.check_invariants();
      engine::Output output = engine_.take_output();
      for (engine::Reply& reply : output.replies) {
        engine_.answering(reply.id, 1);
        engine_.answered(reply.id);
        TERRACE_CHECK(replies_.emplace(reply.id, std::move(reply.result)).second);
      }
      orders_.insert(orders_.end(), output.segment_orders.begin(), output.segment_orders.end());
      for (mover::Transfer& transfer : output.transfers) transfers_.push_back(std::move(transfer));
    } while (!holds_back_ && do_one({}));
  }
  // From now on; what was held back is done at the next drain().
  void hold_back(bool holds) { holds_back_ = holds; }
  // The laws, of words too: not where somebody else writes into them.
  void check(bool checks) { checks_ = checks; }
  // The oldest thing that the engine waits for. False: there is none.
  bool do_one(const Result<void>& result) {
    if (!orders_.empty()) {
      const mover::SegmentOrder order = orders_.front();
      orders_.pop_front();
      engine_.segment_done(now_, {order, result});
    } else if (!transfers_.empty()) {
      const mover::Transfer transfer = transfers_.front();
      transfers_.pop_front();
      engine_.transfer_done(now_, {transfer.id, result, result ? TierId{} : transfer.to.tier});
    } else {
      return false;
    }
    return true;
  }
  void submit(RequestId id, SessionId session, engine::Body body, Duration timeout) {
    engine_.submit(now_, {.id = id, .session = session, .deadline = now_ + timeout, .body = std::move(body)});
    drain();
  }
  void pass(Duration time) {
    now_ = now_ + time;
    engine_.tick(now_);
    drain();
  }
  std::map<RequestId, Result<engine::ReplyBody>>& replies() { return replies_; }
  Time now() const { return now_; }

 private:
  static constexpr std::size_t kUsedMax = 6;  // tensors of a session on which everything is tried
  static constexpr int kCheckEvery = 8;       // the laws take longer to check than an input to take

  engine::Engine& engine_;
  int inputs_ = 0;
  bool checks_ = true;
  bool holds_back_ = false;
  std::deque<mover::SegmentOrder> orders_;
  std::deque<mover::Transfer> transfers_;
  std::vector<std::uint32_t> places_;
  std::uint32_t devices_ = 0;
  Time now_{1'000'000};
  std::uint64_t last_request_ = std::uint64_t{1} << 40;
  std::map<RequestId, Result<engine::ReplyBody>> replies_;
};

}  // namespace terrace::fuzz
