// SPDX-License-Identifier: Apache-2.0
#include "forecast/dram_sizes.h"

#include <algorithm>

#include "workload/node.h"

namespace terrace::forecast {

std::vector<std::uint64_t> dram_sizes(std::vector<std::uint64_t> asked, std::uint64_t own_bytes,
                                      std::uint64_t content_bytes) {
  constexpr std::uint64_t kLeast = 2'000'000'000;
  std::vector<std::uint64_t> sizes = std::move(asked);
  if (sizes.empty()) {
    for (std::uint64_t power = kLeast; power < content_bytes * 2; power *= 2) {
      for (const std::uint64_t size : {power, power / 2 * 3}) {
        const bool enough = !sizes.empty() && sizes.back() >= content_bytes;
        if (size >= content_bytes / 16 && !enough) sizes.push_back(size);
      }
    }
  }
  if (own_bytes != workload::kUnlimited) sizes.push_back(own_bytes);
  std::ranges::sort(sizes);
  const auto rest = std::ranges::unique(sizes);
  sizes.erase(rest.begin(), rest.end());
  return sizes;
}

}  // namespace terrace::forecast
