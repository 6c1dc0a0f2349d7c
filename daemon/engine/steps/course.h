// SPDX-License-Identifier: Apache-2.0
// What a session holds, and how far its trainer has come in its steps.
#pragma once

#include <array>

#include "engine/residency/holdings.h"
#include "engine/steps/foreseen.h"

namespace terrace::engine {

struct Course : Holdings {
  Foreseen foreseen;
  std::array<Declared, 3> declared{};  // by kind
};

}  // namespace terrace::engine
