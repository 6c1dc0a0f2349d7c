// SPDX-License-Identifier: Apache-2.0
// Reading one TOML table key by key, collecting every problem with its line. Internal to config.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "config/problems.h"
#include "config/toml.h"

namespace terrace::config {

// One table. Every getter returns nothing where the key is absent or wrong (a wrong one is in `problems`), and makes
// its key a known one; finish() then names the keys that nobody asked for.
class Section {
 public:
  // `name` stands before each key in messages: "limits" or "tier[0]". Borrows table and problems.
  Section(const toml::table& table, std::string name, Problems& problems);

  std::optional<std::string> text(std::string_view key);
  std::optional<bool> flag(std::string_view key);
  std::optional<double> number(std::string_view key);
  std::optional<std::int64_t> integer(std::string_view key, std::int64_t min, std::int64_t max);
  // A size in bytes, from text ("64GiB") or a whole number.
  std::optional<std::uint64_t> bytes(std::string_view key);
  // The size before "/`unit`" in a text such as "55GB/s", above 0; `right` says in messages what it must be.
  std::optional<std::uint64_t> bytes_per(std::string_view unit, std::string_view key, std::string_view right);
  // A string that is one of `allowed`; returns its index.
  std::optional<std::size_t> one_of(std::string_view key, const std::vector<std::string_view>& allowed);
  // The value as it stands, for keys of several types; null if absent.
  const toml::node* node(std::string_view key);
  const toml::table* table(std::string_view key);
  // The tables of `[[key]]`; empty if absent.
  std::vector<const toml::table*> tables(std::string_view key);

  // Names what is wrong with `key`, at its line, or at the table's own where the key is absent.
  void complain(std::string_view key, std::string_view what);
  // Where it stands, and each of its keys.
  const Origin& origin() const { return origin_; }
  bool has(std::string_view key) const { return table_.contains(key); }
  // Names every key that no getter knows, with the nearest one that is known.
  void finish();

 private:
  const toml::table& table_;
  Origin origin_;
  Problems& problems_;
  std::vector<std::string> known_;
};

// The word of `known` that `word` was most likely meant to be; empty if none is near.
std::string nearest(std::string_view word, const std::vector<std::string>& known);

}  // namespace terrace::config
