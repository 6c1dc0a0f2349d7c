// SPDX-License-Identifier: Apache-2.0
// One call of the engine: when it is, and what is to be done outside.
#pragma once

#include "base/time.h"
#include "engine/values/output.h"

namespace terrace::engine {

struct Turn {
  Time now{};
  Output output;
};

}  // namespace terrace::engine
