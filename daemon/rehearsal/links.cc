// SPDX-License-Identifier: Apache-2.0
#include "rehearsal/links.h"

#include <algorithm>

#include "base/check.h"

namespace terrace::rehearsal {
namespace {

using workload::Direction;

// Copies within a tier, which compact it, and zeroing: an HBM and a DRAM of these years.
constexpr double kHbmBytesPerS = 1e12;
constexpr double kHostBytesPerS = 50e9;

std::size_t at(Direction direction) { return static_cast<std::size_t>(direction); }

Duration time_of(std::uint64_t bytes, double bytes_per_s) {
  return Duration(static_cast<std::int64_t>(static_cast<double>(bytes) / bytes_per_s * 1e9) + 1);
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
  Duration latency{};
  double bytes_per_s = terrace::index(transfer.to.tier) == 0 ? kHbmBytesPerS : kHostBytesPerS;
  if (kind == mover::LinkKind::kHostToDevice || kind == mover::LinkKind::kDeviceToHost) {
    bytes_per_s = static_cast<double>(node_.hbm.bytes_per_s(direction));
    latency = node_.hbm.latency;
    flight.traffic.hbm_bytes[at(direction)] = transfer.bytes;
  } else if (!memcpy) {
    bytes_per_s = static_cast<double>(node_.block.bytes_per_s(direction));
    latency = node_.block.latency;
    flight.traffic.block_bytes[at(direction)] = transfer.bytes;
    if (device_beside_block) {
      flight.traffic.hbm_bytes[at(direction)] = transfer.bytes;
      bytes_per_s = std::min(bytes_per_s, static_cast<double>(node_.hbm.bytes_per_s(direction)));
    }
  }
  TERRACE_CHECK(bytes_per_s > 0);
  Time& free = free_[{kind, memcpy ? transfer.to.tier : TierId{}}];
  free = std::max(free, now) + time_of(transfer.bytes, bytes_per_s);
  done_.emplace(free + latency, transfer.id);
  return flights_.emplace(transfer.id, flight).first->second.traffic;
}

TransferId Links::take() {
  TERRACE_CHECK(!done_.empty());
  const TransferId id = done_.begin()->second;
  done_.erase(done_.begin());
  const Flight flight = flights_.extract(id).mapped();
  traffic_[flight.session] += flight.traffic;
  return id;
}

}  // namespace terrace::rehearsal
