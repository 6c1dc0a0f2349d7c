// SPDX-License-Identifier: Apache-2.0
#include "bench/suite.h"

namespace terrace::bench {

std::span<const Suite> suites() {
  static const std::vector<Suite> all{engine_suite(), lease_suite(), miss_suite(),     block_suite(),
                                      copy_suite(),   scale_suite(), pipeline_suite(), train_suite()};
  return all;
}

}  // namespace terrace::bench
