// SPDX-License-Identifier: Apache-2.0
#include "topology/cgroup.h"

#include <algorithm>
#include <utility>

#include "topology/text_file.h"

namespace terrace::topology {
namespace {

// Whether the comma-separated `list` holds `word`.
bool lists(std::string_view list, std::string_view word) {
  while (true) {
    const std::size_t comma = list.find(',');
    if (list.substr(0, comma) == word) return true;
    if (comma == std::string_view::npos) return false;
    list.remove_prefix(comma + 1);
  }
}

// Walks up from `cgroup`, where cgroups are mounted at `mount`. A container that sees its own cgroup as the mount's
// root has no folder of the name that /proc tells, and the walk ends at the root, which is the right one.
void add_files(const std::string& root, const std::string& mount, std::string cgroup, std::string_view name,
               std::vector<CgroupFile>& files) {
  while (true) {
    if (cgroup == "/") cgroup.clear();
    std::string path = mount + cgroup + "/" + std::string(name);
    if (auto text = read_text(root + path)) files.push_back({std::move(path), std::move(*text)});
    if (cgroup.empty()) return;
    cgroup.resize(cgroup.rfind('/'));
  }
}

}  // namespace

std::vector<CgroupFile> cgroup_files(const std::string& root, const CgroupLimit& limit) {
  std::vector<CgroupFile> files;
  // cgroups(7): each line is "hierarchy:controllers:path"; version 2 has no controllers.
  const std::string cgroups = read_text(root + "/proc/self/cgroup").value_or("");
  std::string_view rest = cgroups;
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string_view::npos || second == std::string_view::npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    const std::string path(line.substr(second + 1));
    if (!path.starts_with('/')) continue;
    if (controllers.empty()) {
      add_files(root, "/sys/fs/cgroup", path, limit.v2_file, files);
      add_files(root, "/sys/fs/cgroup/unified", path, limit.v2_file, files);
    } else if (lists(controllers, limit.v1_controller)) {
      add_files(root, "/sys/fs/cgroup/" + std::string(limit.v1_controller), path, limit.v1_file, files);
    }
  }
  return files;
}

}  // namespace terrace::topology
