// SPDX-License-Identifier: Apache-2.0
#include "topology/mounts.h"

#include <sstream>
#include <string_view>
#include <utility>

#include "topology/text_file.h"

namespace terrace::topology {
namespace {

// mountinfo writes blanks and backslashes as three octal digits: proc(5).
std::string unescaped(std::string_view text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 3 >= text.size()) {
      plain += text[i];
      continue;
    }
    plain += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
    i += 3;
  }
  return plain;
}

}  // namespace

std::vector<Mount> mounts(const std::string& root) {
  std::vector<Mount> found;
  std::istringstream lines(read_text(root + "/proc/self/mountinfo").value_or(""));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string id, parent, device, inside, point, options;
    fields >> id >> parent >> device >> inside >> point >> options;
    const std::size_t dash = line.find(" - ");
    const std::size_t colon = device.find(':');
    if (dash == std::string::npos || colon == std::string::npos) continue;
    Mount mount{.major = static_cast<unsigned>(leading_number(device).value_or(0)),
                .minor = static_cast<unsigned>(leading_number(std::string_view(device).substr(colon + 1)).value_or(0)),
                .point = unescaped(point),
                .is_writable = options.starts_with("rw"),
                .file_system = {},
                .source = {}};
    std::istringstream rest(line.substr(dash + 3));
    rest >> mount.file_system >> mount.source;
    found.push_back(std::move(mount));
  }
  return found;
}

}  // namespace terrace::topology
