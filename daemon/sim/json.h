// SPDX-License-Identifier: Apache-2.0
// How the commands' JSON has times and bytes. Internal to sim.
#pragma once

#include <array>
#include <nlohmann/json.hpp>

#include "base/time.h"

namespace terrace::sim {

inline double microseconds(Duration duration) { return static_cast<double>(duration.count()) / 1e3; }

// Bytes by link and direction: in, out.
template <typename Bytes>
nlohmann::ordered_json by_link(const std::array<Bytes, 2>& hbm, const std::array<Bytes, 2>& block) {
  const auto ways = [](const std::array<Bytes, 2>& bytes) {
    return nlohmann::ordered_json{{"in", bytes[0]}, {"out", bytes[1]}};
  };
  return {{"hbm", ways(hbm)}, {"block", ways(block)}};
}

}  // namespace terrace::sim
