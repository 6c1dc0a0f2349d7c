// SPDX-License-Identifier: Apache-2.0
// What resolve() finds, each named with the key that was written and its line. Internal to config.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "config/problems.h"

namespace terrace::config {

class Findings {
 public:
  // `problems`: those that reading the file found. What resolve() would say of their keys only follows from them, and
  // is left away.
  explicit Findings(Problems problems) : read_(problems), all_(std::move(problems)) {}

  void complain(const Origin& origin, std::string_view key, std::string_view what);
  void warn(const Origin& origin, std::string_view key, std::string_view what);
  // Of the configuration as a whole.
  void warn(std::string what) { warnings_.push_back(std::move(what)); }
  // Whether the key could not be read, so that its value is none.
  bool unreadable(const Origin& origin, std::string_view key) const { return read_.names(origin.name_of(key)); }

  const Problems& problems() const { return all_; }
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  const Problems read_;
  Problems all_;
  std::vector<std::string> warnings_;
};

}  // namespace terrace::config
