// SPDX-License-Identifier: Apache-2.0
#include "config/findings.h"

#include <fmt/format.h>

namespace terrace::config {

void Findings::complain(const Origin& origin, std::string_view key, std::string_view what) {
  const std::string name = origin.name_of(key);
  if (!read_.names(name)) all_.add(origin.line_of(key), name, what);
}

void Findings::warn(const Origin& origin, std::string_view key, std::string_view what) {
  const std::uint32_t line = origin.line_of(key);
  const std::string place = line == 0 ? all_.file() : fmt::format("{}:{}", all_.file(), line);
  warnings_.push_back(fmt::format("{}: {}: {}", place, origin.name_of(key), what));
}

}  // namespace terrace::config
