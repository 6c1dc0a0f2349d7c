// SPDX-License-Identifier: Apache-2.0
#include "workload/node.h"

#include "base/bytes.h"
#include "base/check.h"

namespace terrace::workload {
namespace {

constexpr std::uint64_t kGB = 1'000'000'000;
constexpr std::uint64_t kTB = 1000 * kGB;
constexpr std::uint64_t kPcie3 = 16'915'728'695;  // 15.754 GiB/s

constexpr LinkSpeed kG10Link = {
    .in_bytes_per_s = kPcie3, .out_bytes_per_s = kPcie3, .latency = std::chrono::microseconds(30)};

Node g10_2tier() {
  return {.name = "g10-2tier",
          .hbm_bytes = 40 * kGiB,
          .host_bytes = kUnlimited,
          .block_bytes = 0,
          .hbm = kG10Link,
          .block = {}};
}

Node g10() {
  constexpr std::uint64_t kSsd = 3'435'973'837;  // 3.2 GiB/s
  return {.name = "g10",
          .hbm_bytes = 40 * kGiB,
          .host_bytes = 128 * kGiB,
          .block_bytes = kUnlimited,
          .hbm = kG10Link,
          .block = {.in_bytes_per_s = kSsd, .out_bytes_per_s = kSsd, .latency = std::chrono::microseconds(20)}};
}

Node dgx_h100() {
  constexpr std::uint64_t kGpus = 8;
  return share({.name = "dgx-h100",
                .hbm_bytes = 80 * kGB,
                .host_bytes = 2 * kTB,
                .block_bytes = 30 * kTB,
                .hbm = {.in_bytes_per_s = 55 * kGB, .out_bytes_per_s = 55 * kGB, .latency = {}},
                .block = {.in_bytes_per_s = 48 * kGB, .out_bytes_per_s = 26 * kGB, .latency = {}}},
               kGpus);
}

Node h200_1gpu() {
  return {.name = "h200-1gpu",
          .hbm_bytes = 141 * kGB,
          .host_bytes = 128 * kGiB,
          .block_bytes = 2 * kTB,
          .hbm = {.in_bytes_per_s = 55'400'000'000, .out_bytes_per_s = 54'900'000'000, .latency = {}},
          .block = {.in_bytes_per_s = 6'500'000'000, .out_bytes_per_s = 3'500'000'000, .latency = {}}};
}

}  // namespace

Node share(const Node& node, std::uint64_t gpus) {
  TERRACE_CHECK(gpus >= 1);
  Node part = node;
  if (node.host_bytes != kUnlimited) part.host_bytes /= gpus;
  if (node.block_bytes != kUnlimited) part.block_bytes /= gpus;
  part.block.in_bytes_per_s /= gpus;
  part.block.out_bytes_per_s /= gpus;
  part.block.both_bytes_per_s /= gpus;
  part.gpus = gpus;
  return part;
}

Node whole(const Node& node) {
  Node all = node;
  if (node.host_bytes != kUnlimited) all.host_bytes *= node.gpus;
  if (node.block_bytes != kUnlimited) all.block_bytes *= node.gpus;
  all.block.in_bytes_per_s *= node.gpus;
  all.block.out_bytes_per_s *= node.gpus;
  all.block.both_bytes_per_s *= node.gpus;
  all.gpus = 1;
  return all;
}

std::optional<Node> reference_node(std::string_view name) {
  if (name == kReferenceNodes[0]) return g10_2tier();
  if (name == kReferenceNodes[1]) return g10();
  if (name == kReferenceNodes[2]) return dgx_h100();
  if (name == kReferenceNodes[3]) return h200_1gpu();
  return std::nullopt;
}

}  // namespace terrace::workload
