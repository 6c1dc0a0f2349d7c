// SPDX-License-Identifier: Apache-2.0
// How the supervisor calls what it keeps of sessions and their memory. Short: all names together are one string of the
// next daemon's environment.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "base/ids.h"

namespace terrace::front {

inline constexpr char kKeptRegion = 'r';
inline constexpr char kKeptProcess = 'p';
inline constexpr char kKeptDoorbell = 'd';

inline std::string kept_name(SessionId id, char what) {
  return fmt::format("{}{}", what, static_cast<std::uint32_t>(id));
}

inline std::string kept_segment_name(SessionId space, std::size_t tier, std::uint64_t offset) {
  return fmt::format("s{}.{}.{}", static_cast<std::uint32_t>(space), tier, offset / (2 * kMiB));
}

}  // namespace terrace::front
