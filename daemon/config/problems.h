// SPDX-License-Identifier: Apache-2.0
// What is wrong with a configuration, collected.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "terrace/error.h"

namespace terrace::config {

// Everything that is wrong with one file, in the order of its lines.
class Problems {
 public:
  explicit Problems(std::string file) : file_(std::move(file)) {}
  // `line` 0: of the file as a whole. `what` says what is wrong and what would be right.
  void add(std::uint32_t line, std::string_view key, std::string_view what);
  bool none() const { return problems_.empty(); }
  // Whether something was found wrong with this very key.
  bool names(std::string_view key) const { return keys_.contains(key); }
  const std::string& file() const { return file_; }
  // One InvalidArgument with a line for each problem: "FILE:LINE: KEY: WHAT".
  Error error() const;

 private:
  std::string file_;
  std::multimap<std::uint32_t, std::string> problems_;  // by line; those of one line in the order of their finding
  std::set<std::string, std::less<>> keys_;
};

}  // namespace terrace::config
