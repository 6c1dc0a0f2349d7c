// SPDX-License-Identifier: Apache-2.0
// The kernel's settings for memory and time.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <sstream>
#include <string_view>

#include "base/bytes.h"
#include "doctor/checks.h"
#include "topology/cgroup.h"
#include "topology/text_file.h"

namespace terrace::doctor {
namespace {

constexpr const char* kClockFolder = "/sys/devices/system/clocksource/clocksource0/";
constexpr const char* kHugeFolder = "/sys/kernel/mm/transparent_hugepage/";
constexpr topology::CgroupLimit kSwapMax{"memory.swap.max", "", ""};  // of version 2 alone

// Those that are read by a system call, or over a bus.
constexpr std::array<std::string_view, 5> kSlowClocks = {"hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit"};

std::string text_of(const Node& node, const std::string& path) {
  return topology::read_text(node.root + path).value_or("");
}

// Of "always [madvise] never" the word in brackets.
std::string chosen(const std::string& words) {
  const std::size_t begin = words.find('[');
  const std::size_t end = words.find(']');
  if (begin == std::string::npos || end == std::string::npos || end < begin) return {};
  return words.substr(begin + 1, end - begin - 1);
}

// What swaps, from /proc/swaps: a line of titles, and then a line each.
std::vector<std::string> swaps(const Node& node) {
  std::vector<std::string> names;
  std::istringstream lines(text_of(node, "/proc/swaps"));
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line)) names.push_back(line.substr(0, line.find_first_of(" \t")));
  return names;
}

bool may_not_swap(const Node& node) {
  const auto files = topology::cgroup_files(node.root, kSwapMax);
  return std::ranges::any_of(files, [](const topology::CgroupFile& file) { return file.text == "0"; });
}

}  // namespace

Findings check_huge_pages(const Node& node) {
  std::uint64_t bytes = 0;
  bool must = false;
  for (const config::TierConfig& tier : node.config.tiers) {
    if (!tier.takes_memory() || tier.huge_pages == config::HugePages::kNever) continue;
    bytes += tier.capacity.bytes;
    must = must || tier.huge_pages == config::HugePages::k2MiB;
  }
  if (bytes == 0 && node.refusal) return {not_applicable(kTiersUnknown)};
  if (bytes == 0) return {not_applicable("no tier asks for them")};
  const std::uint64_t wanted = (bytes + kHugePageBytes - 1) / kHugePageBytes;
  const std::uint64_t reserved = node.machine.huge_pages();
  const std::string figures = fmt::format("{} of 2 MiB are reserved, {} of them free, and the memory tiers take {}",
                                          reserved, node.machine.huge_pages_free(), wanted);
  if (reserved >= wanted) return {ok(figures)};
  const std::string mend = fmt::format(
      "sysctl -w vm.nr_hugepages={} (for good in /etc/sysctl.d), or huge_pages = \"never\" in the tier", wanted);
  if (must) return {failure(fmt::format("{}, of which some must be such: the daemon does not start", figures), mend)};
  return {warning(fmt::format("{}: copies miss the TLB more often, and memory is pinned in pages of 4 KiB", figures),
                  mend)};
}

Findings check_transparent_huge_pages(const Node& node) {
  const std::string enabled = chosen(text_of(node, std::string(kHugeFolder) + "enabled"));
  const std::string defrag = chosen(text_of(node, std::string(kHugeFolder) + "defrag"));
  if (enabled.empty()) return {not_applicable("this kernel has none")};
  const std::string figures = fmt::format("enabled is {}, defrag is {}", enabled, defrag.empty() ? "unknown" : defrag);
  if (enabled == "always" && defrag == "always")
    return {warning(
        fmt::format("{}: a trainer that touches new memory waits while the kernel makes room for a huge page", figures),
        fmt::format("echo madvise > {}defrag", kHugeFolder))};
  return {ok(figures)};
}

Findings check_swap(const Node& node) {
  const std::vector<std::string> names = swaps(node);
  if (names.empty()) return {ok("nothing swaps")};
  if (may_not_swap(node))
    return {ok(fmt::format("{} swap, and memory.swap.max of this process's cgroup is 0", fmt::join(names, ", ")))};
  return {
      warning(fmt::format("{} swap: the kernel may write the memory tier's pages there, and a lease then waits for a "
                          "drive, past the daemon's plan",
                          fmt::join(names, ", ")),
              "swapoff -a (for good in /etc/fstab); of a service, MemorySwapMax=0 by `systemctl edit terraced`")};
}

Findings check_numa_balancing(const Node& node) {
  if (node.machine.numa_nodes.size() < 2) return {not_applicable("there is one NUMA node")};
  const auto mode = topology::read_number(node.root + "/proc/sys/kernel/numa_balancing");
  if (!mode) return {not_applicable("this kernel has none")};
  if (*mode == 0) return {ok("kernel.numa_balancing is 0")};
  return {
      warning(fmt::format("kernel.numa_balancing is {}: the kernel unmaps pages to see who uses them, so that trainers "
                          "fault on memory that is there",
                          *mode),
              "sysctl -w kernel.numa_balancing=0 (for good in /etc/sysctl.d)")};
}

Findings check_clock_source(const Node& node) {
  const std::string current = text_of(node, std::string(kClockFolder) + "current_clocksource");
  if (current.empty()) return {not_applicable("the system does not say which it is")};
  if (std::ranges::find(kSlowClocks, current) == kSlowClocks.end()) return {ok(fmt::format("it is {}", current))};
  std::istringstream words(text_of(node, std::string(kClockFolder) + "available_clocksource"));
  std::string better;
  for (std::string word; better.empty() && words >> word;)
    if (std::ranges::find(kSlowClocks, word) == kSlowClocks.end()) better = word;
  const std::string mend = better.empty() ? "journalctl -k --grep clocksource says why the kernel trusts no better one"
                                          : fmt::format("echo {} > {}current_clocksource", better, kClockFolder);
  return {warning(fmt::format("it is {}: each look at the clock is a system call, of a microsecond or more", current),
                  mend)};
}

}  // namespace terrace::doctor
