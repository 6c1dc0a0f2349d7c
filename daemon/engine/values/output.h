// SPDX-License-Identifier: Apache-2.0
// What is to be done outside of the engine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "engine/values/request.h"
#include "foresight/observation.h"
#include "mover/transfer.h"

namespace terrace::engine {

// A tier passed its high mark, upwards or downwards.
struct Pressure {
  TierId tier{};
  bool above = false;
  std::uint64_t used_bytes = 0;
  std::uint64_t capacity_bytes = 0;
};

// A tensor whose only bytes were in memory that is gone.
struct Loss {
  TierId tier{};
  SessionId session{};
  std::string name;
};

// The block tier takes no writes from now on, or takes them again.
struct OutageNews {
  TierId tier{};
  bool begins = false;
  Error why{};        // the write that it began with
  Duration lasted{};  // if it ended
};

// What is to be done outside, in order. `gone`: sessions of which nothing is left; their tables and segments may go.
struct Output {
  std::vector<Reply> replies;
  std::vector<mover::Transfer> transfers;
  std::vector<mover::SegmentOrder> segment_orders;
  std::vector<SessionId> gone;
  std::vector<Pressure> pressure;
  std::vector<foresight::Observation> observations;  // of ordinary sessions, where Options::observe asks for them
  std::vector<Loss> losses;                          // for people to know
  std::vector<OutageNews> outages;                   // likewise

  void clear() {
    replies.clear();
    transfers.clear();
    segment_orders.clear();
    gone.clear();
    pressure.clear();
    observations.clear();
    losses.clear();
    outages.clear();
  }
};

}  // namespace terrace::engine
