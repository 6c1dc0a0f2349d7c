// SPDX-License-Identifier: Apache-2.0
#include "workload/workload.h"

#include <algorithm>

namespace terrace::workload {

Duration compute_time(std::span<const Run> runs) {
  Duration sum{};
  for (const Run& run : runs) sum += run.compute;
  return sum;
}

std::vector<TensorId> leased(const Run& run) {
  std::vector<TensorId> ids = run.read;
  ids.insert(ids.end(), run.write.begin(), run.write.end());
  std::ranges::sort(ids);
  ids.erase(std::ranges::unique(ids).begin(), ids.end());
  return ids;
}

std::uint64_t leased_bytes(const Workload& workload, const Run& run) {
  std::uint64_t sum = 0;
  for (const TensorId id : leased(run)) sum += workload.tensors[id].bytes;
  return sum;
}

}  // namespace terrace::workload
