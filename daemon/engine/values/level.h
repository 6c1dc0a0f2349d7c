// SPDX-License-Identifier: Apache-2.0
// Where a copy of a tensor lies, by kind of tier.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace terrace::engine {

// A tensor has at most one copy per kind of tier; the order is the order of speed.
enum class Level : std::uint8_t { kDevice = 0, kMemory = 1, kBlock = 2, kNone = 3 };
inline constexpr std::size_t kLevels = 3;
inline constexpr std::array<Level, kLevels> kAllLevels{Level::kDevice, Level::kMemory, Level::kBlock};
constexpr std::size_t index(Level level) { return static_cast<std::size_t>(level); }
constexpr std::uint8_t bit(Level level) { return static_cast<std::uint8_t>(1u << index(level)); }

}  // namespace terrace::engine
