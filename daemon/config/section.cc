// SPDX-License-Identifier: Apache-2.0
#include "config/section.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "base/bytes.h"

namespace terrace::config {
namespace {

std::string_view type_name(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::string:
      return "a string";
    case toml::node_type::integer:
      return "a whole number";
    case toml::node_type::floating_point:
      return "a number";
    case toml::node_type::boolean:
      return "true or false";
    case toml::node_type::array:
      return "a list";
    case toml::node_type::table:
      return "a table";
    default:
      return "a date or time";
  }
}

// Levenshtein's distance.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& known) {
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : known) {
    const std::size_t at = distance(word, candidate);
    if (at < best_distance) {
      best_distance = at;
      best = candidate;
    }
  }
  return best;
}

Section::Section(const toml::table& table, std::string name, Problems& problems)
    : table_(table),
      origin_{.section = std::move(name), .line = table.source().begin.line, .lines = {}},
      problems_(problems) {
  for (auto&& [key, value] : table) origin_.lines.emplace(key.str(), value.source().begin.line);
}

const toml::node* Section::node(std::string_view key) {
  known_.emplace_back(key);
  return table_.get(key);
}

void Section::complain(std::string_view key, std::string_view what) {
  problems_.add(origin_.line_of(key), origin_.name_of(key), what);
}

std::optional<std::string> Section::text(std::string_view key) {
  const toml::node* found = node(key);
  if (found == nullptr) return std::nullopt;
  if (const auto* value = found->as_string()) return value->get();
  complain(key, fmt::format("is {}; it must be a string in quotes", type_name(*found)));
  return std::nullopt;
}

std::optional<bool> Section::flag(std::string_view key) {
  const toml::node* found = node(key);
  if (found == nullptr) return std::nullopt;
  if (const auto* value = found->as_boolean()) return value->get();
  complain(key, fmt::format("is {}; it must be true or false, without quotes", type_name(*found)));
  return std::nullopt;
}

std::optional<double> Section::number(std::string_view key) {
  const toml::node* found = node(key);
  if (found == nullptr) return std::nullopt;
  if (found->is_number()) return found->value<double>();
  complain(key, fmt::format("is {}; it must be a number, without quotes", type_name(*found)));
  return std::nullopt;
}

std::optional<std::int64_t> Section::integer(std::string_view key, std::int64_t min, std::int64_t max) {
  const toml::node* found = node(key);
  if (found == nullptr) return std::nullopt;
  const auto* value = found->as_integer();
  if (value == nullptr) {
    complain(key, fmt::format("is {}; it must be a whole number from {} to {}, without quotes", type_name(*found), min,
                              max));
    return std::nullopt;
  }
  if (value->get() < min || value->get() > max) {
    complain(key, fmt::format("is {}; it must be from {} to {}", value->get(), min, max));
    return std::nullopt;
  }
  return value->get();
}

std::optional<std::uint64_t> Section::bytes(std::string_view key) {
  const toml::node* found = node(key);
  if (found == nullptr) return std::nullopt;
  if (const auto* value = found->as_integer(); value != nullptr && value->get() >= 0) {
    return static_cast<std::uint64_t>(value->get());
  }
  const auto* value = found->as_string();
  if (value == nullptr) {
    complain(key, fmt::format("is {}; it must be a size such as \"64GiB\"", type_name(*found)));
    return std::nullopt;
  }
  const Result<std::uint64_t> size = parse_bytes(value->get());
  if (size) return *size;
  complain(key, size.error().message);
  return std::nullopt;
}

std::optional<std::uint64_t> Section::bytes_per(std::string_view unit, std::string_view key, std::string_view right) {
  const std::optional<std::string> value = text(key);
  if (!value) return std::nullopt;
  const std::string end = fmt::format("/{}", unit);
  if (value->ends_with(end)) {
    const Result<std::uint64_t> size = parse_bytes(std::string_view(*value).substr(0, value->size() - end.size()));
    if (size && *size > 0) return *size;
  }
  complain(key, fmt::format("is \"{}\"; it must be {}", *value, right));
  return std::nullopt;
}

std::optional<std::size_t> Section::one_of(std::string_view key, const std::vector<std::string_view>& allowed) {
  const std::optional<std::string> value = text(key);
  if (!value) return std::nullopt;
  const auto found = std::ranges::find(allowed, *value);
  if (found != allowed.end()) return static_cast<std::size_t>(found - allowed.begin());
  complain(key, fmt::format("is \"{}\"; it must be one of \"{}\"", *value, fmt::join(allowed, "\", \"")));
  return std::nullopt;
}

const toml::table* Section::table(std::string_view key) {
  const toml::node* found = node(key);
  if (found == nullptr) return nullptr;
  if (const auto* value = found->as_table()) return value;
  complain(key, fmt::format("is {}; it must be a section, [{}]", type_name(*found), key));
  return nullptr;
}

std::vector<const toml::table*> Section::tables(std::string_view key) {
  std::vector<const toml::table*> result;
  const toml::node* found = node(key);
  if (found == nullptr) return result;
  const auto* list = found->as_array();
  if (list == nullptr || !list->is_homogeneous(toml::node_type::table)) {
    complain(key, fmt::format("is {}; write each one as a section of its own under [[{}]]", type_name(*found), key));
    return result;
  }
  for (const toml::node& element : *list) result.push_back(element.as_table());
  return result;
}

void Section::finish() {
  for (auto&& [key, value] : table_) {
    if (std::ranges::find(known_, key.str()) != known_.end()) continue;
    const std::string meant = nearest(key.str(), known_);
    const std::string right = meant.empty() ? fmt::format("known here are {}", fmt::join(known_, ", "))
                                            : fmt::format("is \"{}\" meant?", meant);
    problems_.add(key.source().begin.line, origin_.name_of(key.str()), fmt::format("there is no such key; {}", right));
  }
}

}  // namespace terrace::config
