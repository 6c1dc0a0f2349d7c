// SPDX-License-Identifier: Apache-2.0
#include "workload/scaled.h"

#include <algorithm>
#include <cmath>

#include "base/bytes.h"
#include "base/check.h"

namespace terrace::workload {
namespace {

constexpr std::uint64_t kCapacityUnitBytes = 2 * kMiB;  // tiers have whole ones

std::uint64_t divided(std::uint64_t bytes, double by, std::uint64_t unit) {
  const double units = std::round(static_cast<double>(bytes) / by / static_cast<double>(unit));
  return std::max<std::uint64_t>(1, static_cast<std::uint64_t>(units)) * unit;
}

// Seconds that a byte in and a byte out take.
double both_ways(const LinkSpeed& link) {
  TERRACE_CHECK(link.in_bytes_per_s > 0 && link.out_bytes_per_s > 0);
  return 1 / static_cast<double>(link.in_bytes_per_s) + 1 / static_cast<double>(link.out_bytes_per_s);
}

}  // namespace

Workload scaled(const Workload& workload, const Scale& scale) {
  TERRACE_CHECK(scale.bytes >= 1 && scale.time > 0);
  Workload smaller = workload;
  for (Tensor& tensor : smaller.tensors) tensor.bytes = divided(tensor.bytes, scale.bytes, kPageBytes);
  for (Run& run : smaller.runs)
    run.compute = Duration(std::llround(static_cast<double>(run.compute.count()) * scale.time));
  return smaller;
}

Node scaled(const Node& node, const Scale& scale, const Workload& workload) {
  std::uint64_t all = 0;
  for (const Tensor& tensor : workload.tensors) all += align_up(tensor.bytes, kPageBytes);
  const auto capacity = [&](std::uint64_t bytes) {
    if (bytes == 0) return bytes;
    return bytes == kUnlimited ? divided(all + all / 16, 1, kCapacityUnitBytes) + kCapacityUnitBytes
                               : divided(bytes, scale.bytes, kCapacityUnitBytes);
  };
  Node smaller = node;
  smaller.hbm_bytes = capacity(node.hbm_bytes);
  smaller.host_bytes = capacity(node.host_bytes);
  smaller.block_bytes = capacity(node.block_bytes);
  return smaller;
}

double time_scale(const Node& from, const Node& to, double bytes) {
  return both_ways(to.hbm) / both_ways(from.hbm) / bytes;
}

}  // namespace terrace::workload
