// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "engine/values/status.h"

namespace terrace::engine {

double Histogram::upper_bound_seconds(std::size_t bucket) {
  if (bucket + 1 >= kBuckets) return std::numeric_limits<double>::infinity();
  double bound = 1e-6;
  for (std::size_t i = 0; i < bucket; ++i) bound *= 4;
  return bound;
}

void Histogram::record(Duration duration) {
  const double seconds = std::chrono::duration<double>(duration).count();
  std::size_t bucket = 0;
  while (bucket + 1 < kBuckets && seconds > upper_bound_seconds(bucket)) ++bucket;
  ++counts[bucket];
  sum_seconds += seconds;
}

}  // namespace terrace::engine
