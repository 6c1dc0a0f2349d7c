// SPDX-License-Identifier: Apache-2.0
// The links of a node in virtual time: each direction takes its transfers, and finishes them, in the order in which
// they are handed to it, and while both are at work they slow each other down as the node says. No bytes move.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <utility>

#include "base/time.h"
#include "mover/transfer.h"
#include "workload/node.h"

namespace terrace::rehearsal {

// What went over the node's links, by direction as workload::Direction.
struct Traffic {
  std::array<std::uint64_t, 2> hbm_bytes{};    // between HBM and host
  std::array<std::uint64_t, 2> block_bytes{};  // between host and block
  bool operator==(const Traffic&) const = default;
  Traffic& operator+=(const Traffic& more);
  Traffic& operator/=(std::uint64_t by);
};
Traffic operator-(const Traffic& later, const Traffic& earlier);

class Links {
 public:
  explicit Links(const workload::Node& node) : node_(node) {}

  // What it will have moved; valid until it is taken.
  const Traffic& start(Time now, const mover::Transfer& transfer, bool device_beside_block);
  // When the next transfer is done, if no other is started before; kNever if none is under way.
  Time next() const;
  // That one, which there must be.
  TransferId take();
  // Of the session's transfers that are done.
  const Traffic& traffic(SessionId session) { return traffic_[session]; }

 private:
  struct Flight {
    SessionId session{};
    Traffic traffic;
  };
  struct Moving {
    TransferId id{};
    Duration left{};  // with the link to itself
    Duration finish{};
  };
  struct Lane {
    std::deque<Moving> moving;  // the first one has the link
    Time done{};                // of the last one that left it
  };
  using Key = std::pair<mover::LinkKind, TierId>;  // copies within tiers have one each
  using Lanes = std::map<Key, Lane>;

  double slowness(mover::LinkKind kind) const;
  Time end_of(const Lanes::value_type& lane) const;
  Time done(const Lanes::value_type& lane) const;
  void advance(Time to);
  void move(Time to);

  const workload::Node& node_;
  Lanes lanes_;
  Time at_{};                                   // how far they have come
  std::set<std::pair<Time, TransferId>> done_;  // have left their link
  std::map<TransferId, Flight> flights_;
  std::map<SessionId, Traffic> traffic_;
};

}  // namespace terrace::rehearsal
