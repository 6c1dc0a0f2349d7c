// SPDX-License-Identifier: Apache-2.0
#include "base/bytes.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>

namespace terrace {
namespace {

struct Unit {
  std::string_view name;
  std::uint64_t bytes;
};

constexpr std::array kUnits = {
    Unit{"", 1},
    Unit{"B", 1},
    Unit{"KiB", kKiB},
    Unit{"MiB", kMiB},
    Unit{"GiB", kGiB},
    Unit{"TiB", kGiB* kKiB},
    Unit{"KB", 1000},
    Unit{"MB", 1000 * 1000},
    Unit{"GB", 1000000000},
    Unit{"TB", 1000000000000},
};

}  // namespace

Result<std::uint64_t> parse_bytes(std::string_view text) {
  double number = 0;
  const char* end = text.data() + text.size();
  auto [rest, error] = std::from_chars(text.data(), end, number);
  while (rest != end && *rest == ' ') ++rest;
  const std::string_view unit(rest, static_cast<std::size_t>(end - rest));
  if (error == std::errc() && std::isfinite(number) && number >= 0) {
    for (const Unit& known : kUnits) {
      if (known.name != unit) continue;
      const double bytes = number * static_cast<double>(known.bytes);
      if (bytes < 0x1p63) return static_cast<std::uint64_t>(bytes);
    }
  }
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("\"{}\" is not a size; write it as \"64GiB\", \"512MiB\" or \"2TB\"", text));
}

std::string format_bytes(std::uint64_t bytes) {
  constexpr std::array kNames = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kNames.size()) {
    value /= 1024;
    ++unit;
  }
  if (value >= 999.5) return fmt::format("{:.0f} {}", value, kNames[unit]);
  return fmt::format("{:.3g} {}", value, kNames[unit]);
}

}  // namespace terrace
