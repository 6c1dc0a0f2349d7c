// SPDX-License-Identifier: Apache-2.0
#include "doctor/checks.h"

#include <algorithm>
#include <array>
#include <utility>

namespace terrace::doctor {

std::span<const Check> checks() {
  static constexpr std::array kChecks = {
      Check{"config", check_config},
      Check{"sockets", check_sockets},
      Check{"io_uring", check_io_uring},
      Check{"block_path", check_block_path},
      Check{"block_room", check_block_room},
      Check{"memlock", check_memlock},
      Check{"open_files", check_open_files},
      Check{"cgroup_memory", check_cgroup_memory},
      Check{"cgroup_cpu", check_cgroup_cpu},
      Check{"huge_pages", check_huge_pages},
      Check{"transparent_huge_pages", check_transparent_huge_pages},
      Check{"swap", check_swap},
      Check{"numa_balancing", check_numa_balancing},
      Check{"clock_source", check_clock_source},
      Check{"pcie_link", check_pcie_link},
      Check{"power_state", check_power_state},
      Check{"nvidia_driver", check_nvidia_driver},
      Check{"nvidia_persistence", check_nvidia_persistence},
  };
  return kChecks;
}

std::vector<Examined> examine(const Node& node) {
  std::vector<Examined> examined;
  for (const Check& check : checks())
    for (Finding& finding : check.look(node)) examined.push_back({check.name, std::move(finding)});
  return examined;
}

Verdict verdict_on(std::span<const Examined> examined) {
  Verdict worst = Verdict::kNotApplicable;
  for (const Examined& each : examined) worst = std::max(worst, each.finding.verdict);
  return worst;
}

}  // namespace terrace::doctor
