// SPDX-License-Identifier: Apache-2.0
// What is counted for the status.
#pragma once

#include "engine/values/status.h"

namespace terrace::engine {

struct Counts {
  PrefetchStatus prefetches;
  ForesightStatus foresight;
  Restored restored;
};

}  // namespace terrace::engine
