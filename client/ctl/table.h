// SPDX-License-Identifier: Apache-2.0
// Aligned columns for people.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace terrace::ctl {

class Table {
 public:
  // A title that begins with '>' stands, like its column, at the right: numbers.
  explicit Table(std::vector<std::string> titles);

  void add(std::vector<std::string> row);
  bool empty() const { return rows_.empty(); }
  // Each line ends with a newline.
  std::string text() const;

 private:
  std::vector<std::string> titles_;
  std::vector<bool> right_;
  std::vector<std::vector<std::string>> rows_;
};

// "[#####.....]", `width` marks wide; the share is cut to 0..1.
std::string bar(double share, std::size_t width);
// "63.2%"; "-" of nothing.
std::string percent(std::uint64_t part, std::uint64_t whole);

}  // namespace terrace::ctl
