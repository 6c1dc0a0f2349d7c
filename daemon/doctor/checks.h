// SPDX-License-Identifier: Apache-2.0
// The checks, each a function of a node under a name that stays. docs/reference/doctor.md has a line for each.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "doctor/finding.h"
#include "doctor/node.h"

namespace terrace::doctor {

// Each says at least one thing. Those that look at several paths, drives or GPUs say one for each.
Findings check_config(const Node& node);
Findings check_sockets(const Node& node);
Findings check_io_uring(const Node& node);
Findings check_block_path(const Node& node);
Findings check_block_room(const Node& node);
Findings check_memlock(const Node& node);
Findings check_open_files(const Node& node);
Findings check_cgroup_memory(const Node& node);
Findings check_cgroup_cpu(const Node& node);
Findings check_huge_pages(const Node& node);
Findings check_transparent_huge_pages(const Node& node);
Findings check_swap(const Node& node);
Findings check_numa_balancing(const Node& node);
Findings check_clock_source(const Node& node);
Findings check_pcie_link(const Node& node);
Findings check_power_state(const Node& node);
Findings check_nvidia_driver(const Node& node);
Findings check_nvidia_persistence(const Node& node);

struct Check {
  std::string_view name;
  Findings (*look)(const Node&);
};

// All of them, what keeps a daemon from its start first.
std::span<const Check> checks();

struct Examined {
  std::string_view check;
  Finding finding;
};

// Runs all checks. block_path writes and removes a nameless file in the folder of each block file; nothing else is
// changed.
std::vector<Examined> examine(const Node& node);

// The worst of them.
Verdict verdict_on(std::span<const Examined> examined);

}  // namespace terrace::doctor
