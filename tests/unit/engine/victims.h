// SPDX-License-Identifier: Apache-2.0
// The order in which a policy would give copies up.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/policy/policy.h"

namespace terrace::engine {

inline std::vector<std::uint32_t> victims(const Policy& policy) {
  std::vector<std::uint32_t> order;
  policy.offer_victims([&](Slot slot) {
    order.push_back(static_cast<std::uint32_t>(slot));
    return true;
  });
  return order;
}

}  // namespace terrace::engine
