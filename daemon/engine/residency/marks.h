// SPDX-License-Identifier: Apache-2.0
// Marks on tensors, for whoever walks a set.
#pragma once

#include <cstdint>

namespace terrace::engine {

struct Marks {
  std::uint64_t next = 1;
  std::uint64_t set = UINT64_MAX;  // on the tensors of the set that room is made for
};

}  // namespace terrace::engine
