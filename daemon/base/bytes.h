// SPDX-License-Identifier: Apache-2.0
// Sizes in bytes: units, rounding, and the text form of configuration and messages ("64GiB").
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "terrace/error.h"

namespace terrace {

inline constexpr std::uint64_t kKiB = 1024;
inline constexpr std::uint64_t kMiB = 1024 * kKiB;
inline constexpr std::uint64_t kGiB = 1024 * kMiB;

// Every extent begins and ends on this boundary: what O_DIRECT and mmap both accept.
inline constexpr std::uint64_t kPageBytes = 4 * kKiB;
inline constexpr std::uint64_t kHugePageBytes = 2 * kMiB;

// `unit` is a power of two. align_up's caller has made sure that the sum does not overflow.
constexpr std::uint64_t align_down(std::uint64_t value, std::uint64_t unit) { return value & ~(unit - 1); }
constexpr std::uint64_t align_up(std::uint64_t value, std::uint64_t unit) { return align_down(value + unit - 1, unit); }

// Reads "64GiB", "512 MiB", "1TiB", "4096" or decimal units "2GB". InvalidArgument names the text and the accepted
// form.
Result<std::uint64_t> parse_bytes(std::string_view text);

// "1.5 GiB": for people; three significant digits.
std::string format_bytes(std::uint64_t bytes);

}  // namespace terrace
