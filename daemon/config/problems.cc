// SPDX-License-Identifier: Apache-2.0
#include "config/problems.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

namespace terrace::config {

void Problems::add(std::uint32_t line, std::string_view key, std::string_view what) {
  const std::string place = line == 0 ? file_ : fmt::format("{}:{}", file_, line);
  keys_.emplace(key);
  problems_.emplace(line,
                    key.empty() ? fmt::format("{}: {}", place, what) : fmt::format("{}: {}: {}", place, key, what));
}

Error Problems::error() const {
  std::vector<std::string_view> lines;
  for (const auto& [line, text] : problems_) lines.push_back(text);
  return Error{ErrorCode::kInvalidArgument, fmt::format("{}", fmt::join(lines, "\n")), 0};
}

}  // namespace terrace::config
