// SPDX-License-Identifier: Apache-2.0
#include "rehearsal/links.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace terrace::rehearsal {
namespace {

using workload::Direction;

std::size_t at(Direction direction) { return static_cast<std::size_t>(direction); }

Duration time_of(std::uint64_t bytes, double bytes_per_s) {
  return Duration(static_cast<std::int64_t>(static_cast<double>(bytes) / bytes_per_s * 1e9) + 1);
}

mover::LinkKind opposite(mover::LinkKind kind) {
  switch (kind) {
    case mover::LinkKind::kHostToDevice:
      return mover::LinkKind::kDeviceToHost;
    case mover::LinkKind::kDeviceToHost:
      return mover::LinkKind::kHostToDevice;
    case mover::LinkKind::kBlockRead:
      return mover::LinkKind::kBlockWrite;
    case mover::LinkKind::kBlockWrite:
      return mover::LinkKind::kBlockRead;
    case mover::LinkKind::kMemcpy:
      break;
  }
  return kind;
}

bool is_block(mover::LinkKind kind) {
  return kind == mover::LinkKind::kBlockRead || kind == mover::LinkKind::kBlockWrite;
}

}  // namespace

Traffic operator-(const Traffic& later, const Traffic& earlier) {
  Traffic difference = later;
  for (std::size_t i = 0; i < 2; ++i) {
    difference.hbm_bytes[i] -= earlier.hbm_bytes[i];
    difference.block_bytes[i] -= earlier.block_bytes[i];
  }
  return difference;
}

Traffic& Traffic::operator+=(const Traffic& more) {
  for (std::size_t i = 0; i < 2; ++i) {
    hbm_bytes[i] += more.hbm_bytes[i];
    block_bytes[i] += more.block_bytes[i];
  }
  return *this;
}

Traffic& Traffic::operator/=(std::uint64_t by) {
  for (std::size_t i = 0; i < 2; ++i) {
    hbm_bytes[i] /= by;
    block_bytes[i] /= by;
  }
  return *this;
}

// `device_beside_block`: the other end of a block link is HBM, so that the bytes go over its link too.
const Traffic& Links::start(Time now, const mover::Transfer& transfer, bool device_beside_block) {
  const mover::LinkKind kind = transfer.link.kind;
  const bool memcpy = kind == mover::LinkKind::kMemcpy;
  const Direction direction =
      kind == mover::LinkKind::kHostToDevice || kind == mover::LinkKind::kBlockRead ? Direction::kIn : Direction::kOut;
  Flight flight{.session = transfer.to.session, .traffic = {}};
  Duration finish{};
  auto bytes_per_s = static_cast<double>(terrace::index(transfer.to.tier) == 0 ? node_.hbm_within_bytes_per_s
                                                                               : node_.host_within_bytes_per_s);
  if (kind == mover::LinkKind::kHostToDevice || kind == mover::LinkKind::kDeviceToHost) {
    bytes_per_s = static_cast<double>(node_.hbm.bytes_per_s(direction));
    finish = node_.hbm.finish(direction, transfer.bytes);
    flight.traffic.hbm_bytes[at(direction)] = transfer.bytes;
  } else if (!memcpy) {
    bytes_per_s = static_cast<double>(node_.block.bytes_per_s(direction));
    finish = node_.block.finish(direction, transfer.bytes);
    flight.traffic.block_bytes[at(direction)] = transfer.bytes;
    if (device_beside_block) {
      flight.traffic.hbm_bytes[at(direction)] = transfer.bytes;
      bytes_per_s = std::min(bytes_per_s, static_cast<double>(node_.hbm.bytes_per_s(direction)));
    }
  }
  TERRACE_CHECK(bytes_per_s > 0);
  advance(now);
  lanes_[{kind, memcpy ? transfer.to.tier : TierId{}}].moving.push_back(
      {transfer.id, time_of(transfer.bytes, bytes_per_s), finish});
  return flights_.emplace(transfer.id, flight).first->second.traffic;
}

// By what factor transfers take longer now than with the link to themselves.
double Links::slowness(mover::LinkKind kind) const {
  if (kind == mover::LinkKind::kMemcpy) return 1;
  const auto other = lanes_.find({opposite(kind), TierId{}});
  if (other == lanes_.end() || other->second.moving.empty()) return 1;
  return (is_block(kind) ? node_.block : node_.hbm).both_ways().slowness();
}

// When the first of a lane that is not empty is through, if nothing changes.
Time Links::end_of(const Lanes::value_type& lane) const {
  const double left = static_cast<double>(lane.second.moving.front().left.count()) * slowness(lane.first.first);
  return at_ + Duration(static_cast<std::int64_t>(std::ceil(left)));
}

// When it is done then.
Time Links::done(const Lanes::value_type& lane) const {
  return std::max(lane.second.done, end_of(lane) + lane.second.moving.front().finish);
}

void Links::move(Time to) {
  const Duration passed = to - at_;
  for (auto& [key, lane] : lanes_) {
    if (lane.moving.empty()) continue;
    const double moved = static_cast<double>(passed.count()) / slowness(key.first);
    Duration& left = lane.moving.front().left;
    left = std::max(Duration(), left - Duration(static_cast<std::int64_t>(moved)));
  }
  at_ = to;
}

void Links::advance(Time to) {
  while (true) {
    Lanes::value_type* first = nullptr;
    for (auto& lane : lanes_)
      if (!lane.second.moving.empty() && (first == nullptr || end_of(lane) < end_of(*first))) first = &lane;
    if (first == nullptr || end_of(*first) > to) break;
    first->second.done = done(*first);
    move(end_of(*first));
    done_.emplace(first->second.done, first->second.moving.front().id);
    first->second.moving.pop_front();
  }
  if (to > at_) move(to);
}

Time Links::next() const {
  Time next = done_.empty() ? kNever : done_.begin()->first;
  for (const auto& lane : lanes_)
    if (!lane.second.moving.empty()) next = std::min(next, done(lane));
  return next;
}

TransferId Links::take() {
  advance(next());
  TERRACE_CHECK(!done_.empty());
  const TransferId id = done_.begin()->second;
  done_.erase(done_.begin());
  const Flight flight = flights_.extract(id).mapped();
  traffic_[flight.session] += flight.traffic;
  return id;
}

}  // namespace terrace::rehearsal
