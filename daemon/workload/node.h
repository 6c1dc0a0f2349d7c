// SPDX-License-Identifier: Apache-2.0
// A node as a workload sees it: how much memory of each kind there is, and how fast it can be reached. Plain values.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/both_ways.h"
#include "base/time.h"
#include "workload/workload.h"

namespace terrace::workload {

// The capacity of a tier that never fills. Not a number to add to.
inline constexpr std::uint64_t kUnlimited = UINT64_MAX;

// The direction of a move over a link, seen from the GPU: in is towards HBM (host to device, block read).
enum class Direction : std::uint8_t { kIn, kOut };
inline constexpr std::array<std::string_view, 2> kDirectionNames = {"in", "out"};

// A transfer goes in pieces; one of this many bytes and more drains for as long as any does.
inline constexpr std::uint64_t kDrainBytes = 8ull << 20;

// One link. Every transfer takes its bytes over the bandwidth of its direction, and then `latency`, and inwards
// `in_drain`, while the next one has the link; while both directions are at work, each is slower by so much that they
// move `both_bytes_per_s` together (base/both_ways.h).
struct LinkSpeed {
  std::uint64_t in_bytes_per_s = 0;
  std::uint64_t out_bytes_per_s = 0;
  Duration latency{};
  Duration in_drain{};                 // of kDrainBytes, less of fewer: the last pieces of what is read are checked
  std::uint64_t both_bytes_per_s = 0;  // 0, or what the two are together: they do not slow each other down
  BothWays both_ways() const {
    return {static_cast<double>(in_bytes_per_s), static_cast<double>(out_bytes_per_s),
            static_cast<double>(both_bytes_per_s)};
  }
  std::uint64_t bytes_per_s(Direction direction) const {
    return direction == Direction::kIn ? in_bytes_per_s : out_bytes_per_s;
  }
  // From when it has left the link until a transfer of `bytes` is done.
  Duration finish(Direction direction, std::uint64_t bytes) const {
    if (direction == Direction::kOut) return latency;
    const double share = static_cast<double>(std::min(bytes, kDrainBytes)) / static_cast<double>(kDrainBytes);
    return latency + Duration(static_cast<std::int64_t>(static_cast<double>(in_drain.count()) * share));
  }
  bool operator==(const LinkSpeed&) const = default;
};

// What one GPU has: its own memory, and its share of the host's memory and of the block devices.
struct Node {
  std::string name;
  std::uint64_t hbm_bytes = 0;
  std::uint64_t host_bytes = 0;   // 0: none; kUnlimited
  std::uint64_t block_bytes = 0;  // likewise
  LinkSpeed hbm;                  // between HBM and host
  LinkSpeed block;                // between host and block; all zero where there is none
  Duration request_latency{};     // of each of a trainer's requests, beside what it waits for
  std::uint64_t gpus = 1;         // of the machine that this is one GPU's share of
  // From one place of it to another, which is how it is compacted, and zeroing: an HBM and a DRAM of these years.
  std::uint64_t hbm_within_bytes_per_s = 1'000'000'000'000;
  std::uint64_t host_within_bytes_per_s = 50'000'000'000;

  // What may be leased at once in `place`.
  std::uint64_t capacity_bytes(Place place) const { return place == Place::kHbm ? hbm_bytes : host_bytes; }
  bool operator==(const Node&) const = default;
};

// The sum of two capacities, either of which may be kUnlimited.
constexpr std::uint64_t add_capacity(std::uint64_t a, std::uint64_t b) {
  return a > kUnlimited - b ? kUnlimited : a + b;
}

// `node`, of one GPU, with the host's memory, the block devices and their link divided by `gpus` (at least 1), for a
// node whose GPUs run alike ranks at once. Each GPU has a link of its own.
Node share(const Node& node, std::uint64_t gpus);
// The other way: one GPU with all that the machine has, of which `node` is a share.
Node whole(const Node& node);

// The reference nodes of docs/reference/workloads.md: "g10-2tier", "g10", "dgx-h100" (an eighth of one) and
// "h200-1gpu".
inline constexpr std::array<std::string_view, 4> kReferenceNodes = {"g10-2tier", "g10", "dgx-h100", "h200-1gpu"};
std::optional<Node> reference_node(std::string_view name);

}  // namespace terrace::workload
