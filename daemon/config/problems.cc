// SPDX-License-Identifier: Apache-2.0
#include "config/problems.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace terrace::config {

void Problems::add(std::uint32_t line, std::string_view key, std::string_view what) {
  const std::string place = line == 0 ? file_ : fmt::format("{}:{}", file_, line);
  problems_.push_back(
      {line, key.empty() ? fmt::format("{}: {}", place, what) : fmt::format("{}: {}: {}", place, key, what)});
}

Error Problems::error() const {
  std::vector<Problem> sorted = problems_;
  std::ranges::stable_sort(sorted, {}, &Problem::line);
  std::vector<std::string_view> lines;
  for (const Problem& problem : sorted) lines.push_back(problem.text);
  return Error{ErrorCode::kInvalidArgument, fmt::format("{}", fmt::join(lines, "\n")), 0};
}

}  // namespace terrace::config
