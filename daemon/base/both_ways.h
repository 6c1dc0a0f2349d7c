// SPDX-License-Identifier: Apache-2.0
// What a link does while both of its directions are at work. Whoever plans, simulates or bounds goes by this.
#pragma once

#include <algorithm>

namespace terrace {

// Bytes per second, or any one unit.
struct BothWays {
  double in = 0;  // each by itself
  double out = 0;
  double both = 0;  // in and out at once, together; 0, or what the two are: they do not slow each other down

  // By what factor each direction takes longer while the other is at work: so they keep their proportion.
  constexpr double slowness() const { return both == 0 || both >= in + out ? 1 : (in + out) / both; }
  // How much of the time that one direction is at work the other loses, at the least: they may take turns, too. What
  // takes a and b by itself, a >= b, takes a + b * toll() together.
  constexpr double toll() const { return std::min(slowness() - 1, 1.0); }
};

}  // namespace terrace
