// SPDX-License-Identifier: Apache-2.0
#include "front/reactor/engine_loop.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>
#include <variant>

namespace terrace::front {

void EngineLoop::submit(engine::Request request, Gateway::Answer answer) {
  answers_.emplace(request.id, std::move(answer));
  engine_->submit(now(), std::move(request));
}

void EngineLoop::pump() {
  engine_->tick(now());
  while (pump_once()) {
  }
  receiver_.settled();
}

bool EngineLoop::pump_once() {
  const auto transfers = mover_.take_transfers();
  for (const mover::TransferDone& done : transfers) {
    if (!done.result) spdlog::warn("transfer {}: {}", static_cast<std::uint64_t>(done.id), done.result.error().message);
    engine_->transfer_done(now(), done);
  }
  if (std::ranges::any_of(transfers, [](const mover::TransferDone& done) { return !done.result; }))
    receiver_.transfer_failed();
  const auto segments = mover_.take_segments();
  for (const mover::SegmentDone& done : segments) receiver_.segment_done(done);

  engine::Output output = std::exchange(output_memory_, {});
  engine_->take_output(output);
  const bool idle = transfers.empty() && segments.empty() && output.replies.empty() && output.transfers.empty() &&
                    output.segment_orders.empty() && output.gone.empty() && output.pressure.empty();
  if (!output.observations.empty()) receiver_.observed(output.observations);
  receiver_.lost(output.losses);
  receiver_.changed(output.outages);
  for (const mover::SegmentOrder& order : output.segment_orders) receiver_.ordered(order);
  for (const mover::Transfer& transfer : output.transfers) mover_.start(transfer);
  for (const SessionId id : output.gone) receiver_.closed(id);
  answer(output.replies);
  for (const SessionId id : output.gone) receiver_.gone(id);
  receiver_.pressed(output.pressure);
  output_memory_ = std::move(output);
  return !idle;
}

void EngineLoop::answer(std::vector<engine::Reply>& replies) {
  for (engine::Reply& reply : replies) {
    if (auto* status = reply.result ? std::get_if<engine::Status>(&*reply.result) : nullptr)
      receiver_.complete(*status);
    auto waiting = answers_.extract(reply.id);
    const RequestId id = reply.id;
    if (!waiting.empty()) waiting.mapped()(std::move(reply));
    engine_->answered(id);
  }
}

}  // namespace terrace::front
