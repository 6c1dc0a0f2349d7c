// SPDX-License-Identifier: Apache-2.0
#include "topology/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/bytes.h"

namespace terrace::topology {
namespace {

std::string node_text(std::optional<unsigned> node) { return node ? fmt::format("node {}", *node) : "node unknown"; }

// "0-3,8": runs of consecutive numbers.
std::string ranges_text(const std::vector<unsigned>& numbers) {
  std::string text;
  for (std::size_t begin = 0; begin < numbers.size();) {
    std::size_t end = begin + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    if (!text.empty()) text += ',';
    text +=
        end - begin == 1 ? fmt::format("{}", numbers[begin]) : fmt::format("{}-{}", numbers[begin], numbers[end - 1]);
    begin = end;
  }
  return text;
}

// "a (node 0), b (node 1)"; at most `max`, since the report is one screen.
template <typename Devices, typename Text>
std::string list_text(const Devices& devices, std::size_t max, Text text) {
  if (devices.empty()) return "none";
  std::vector<std::string> words;
  for (std::size_t i = 0; i < std::min(devices.size(), max); ++i) words.push_back(text(devices[i]));
  if (devices.size() > max) words.push_back(fmt::format("and {} more", devices.size() - max));
  return fmt::format("{}", fmt::join(words, ", "));
}

std::string block_path_text(const BlockPath& block, bool says_node) {
  const std::string disks = block.devices.empty() ? "no disk" : fmt::format("{}", fmt::join(block.devices, ", "));
  const DirectIo& direct = block.direct_io;
  const std::string alignment = direct.supported
                                    ? fmt::format("O_DIRECT aligned to {} in memory and {} on disk (by {})",
                                                  format_bytes(direct.memory_alignment_bytes),
                                                  format_bytes(direct.offset_alignment_bytes), direct.source)
                                    : fmt::format("no O_DIRECT ({})", direct.why_not);
  return fmt::format("{}: {} on {}{}, room for {}, {}", block.path,
                     block.file_system.empty() ? "unknown file system" : block.file_system, disks,
                     says_node ? " (" + node_text(block.numa_node) + ")" : "", format_bytes(block.room_bytes),
                     alignment);
}

void add_ring_lacks(const Machine& machine, std::vector<Lack>& result) {
  if (!machine.io_uring.available) return;  // require() names it
  if (!machine.io_uring.has("defer_taskrun")) {
    result.push_back({"io_uring has no defer_taskrun",
                      "completions interrupt the daemon's loop instead of waiting for it",
                      "use a kernel of 6.1 or later"});
  }
  if (!machine.io_uring.has("read_fixed") || !machine.io_uring.has("write_fixed")) {
    result.push_back({"io_uring has no fixed reads and writes",
                      "the kernel looks up and pins the pages of every transfer anew",
                      "use a kernel of 5.6 or later, and allow them in the seccomp profile"});
  }
}

void add_path_lacks(const BlockPath& block, bool several_nodes, std::vector<Lack>& result) {
  if (block.file_system == "tmpfs" || block.file_system == "ramfs") {
    result.push_back({fmt::format("{} lies in memory ({}), not on a disk", block.path, block.file_system),
                      "what the block tier holds takes the memory that it is to spare, and does not outlive a reboot",
                      "put the file on a local drive"});
  }
  if (block.direct_io.supported && block.direct_io.source == "probe") {
    result.push_back({fmt::format("the kernel does not say how O_DIRECT is aligned at {} (STATX_DIOALIGN)", block.path),
                      "a write and a read of 4 KiB were tried instead, so that transfers are aligned to that",
                      "use a kernel of 6.1 or later, and ext4 or xfs"});
  }
  if (several_nodes && !block.numa_node) {
    result.push_back({fmt::format("the NUMA node of {} is unknown", block.path),
                      "its transfers may cross between sockets",
                      "put the file on one local disk, or stripe over files on disks of one node each"});
  }
}

}  // namespace

std::string limit_text(std::uint64_t bytes) { return bytes == kUnlimited ? "unlimited" : format_bytes(bytes); }

std::vector<Lack> lacks(const Machine& machine, const Taken& taken) {
  std::vector<Lack> result;
  const bool short_of_memlock = machine.memlock_bytes != kUnlimited && machine.memlock_bytes < taken.pinned_bytes;
  if (taken.pinned_bytes != 0 && short_of_memlock) {
    result.push_back({fmt::format("memlock is {}, and the memory that block I/O uses is {}",
                                  limit_text(machine.memlock_bytes), format_bytes(taken.pinned_bytes)),
                      "what is not registered is looked up and pinned by the kernel anew for every transfer",
                      "LimitMEMLOCK=infinity in the unit, or \"memlock unlimited\" in /etc/security/limits.conf"});
  }
  const std::uint64_t wanted = (taken.huge_page_bytes + kHugePageBytes - 1) / kHugePageBytes;
  // Those that are not free may be a former daemon's, which this one goes on with.
  if (machine.huge_pages() < wanted) {
    result.push_back({fmt::format("{} huge pages of 2 MiB wanted, {} reserved, {} free", wanted, machine.huge_pages(),
                                  machine.huge_pages_free()),
                      "copies miss the TLB more often, and pinning goes page by page of 4 KiB",
                      fmt::format("sysctl vm.nr_hugepages={}, or huge_pages = \"never\"", wanted)});
  }
  add_ring_lacks(machine, result);
  for (const BlockPath& block : taken.block_paths) add_path_lacks(block, machine.numa_nodes.size() > 1, result);
  return result;
}

Result<void> require(const Machine& machine, const Taken& taken, bool strict) {
  std::vector<std::string> wrong;
  if (!machine.io_uring.available) {
    wrong.push_back("io_uring is not available, and the daemon runs on it: " + machine.io_uring.why_not);
  }
  for (const BlockPath& block : taken.block_paths) {
    const DirectIo& direct = block.direct_io;
    if (!direct.supported) {
      wrong.push_back(
          fmt::format("{}: the file system ({}) has no O_DIRECT: {}; put the file on one that has, such as "
                      "ext4 or xfs",
                      block.path, block.file_system.empty() ? "unknown" : block.file_system, direct.why_not));
    } else if (std::max(direct.memory_alignment_bytes, direct.offset_alignment_bytes) > kPageBytes) {
      wrong.push_back(fmt::format("{}: O_DIRECT is aligned to {} here; the block tier needs {} or less", block.path,
                                  format_bytes(std::max(direct.memory_alignment_bytes, direct.offset_alignment_bytes)),
                                  format_bytes(kPageBytes)));
    }
  }
  if (strict) {
    for (const Lack& lack : lacks(machine, taken)) {
      wrong.push_back(fmt::format("strict = true, and {}: {}", lack.what, lack.cure));
    }
  }
  if (wrong.empty()) return {};
  return fail(ErrorCode::kFailedPrecondition, fmt::format("{}", fmt::join(wrong, "\n")), machine.io_uring.system_error);
}

std::string describe(const Machine& machine, const Taken& taken, std::span<const Lack> missing) {
  std::string text;
  const auto line = [&text](std::string_view head, const std::string& rest) {
    text += fmt::format("{:<10} {}\n", head, rest);
  };
  line("kernel", "Linux " + machine.kernel_version);
  const bool limited = machine.memory_bytes < machine.memory_total_bytes;
  line("memory", limited ? fmt::format("{} of {}, by {}", format_bytes(machine.memory_bytes),
                                       format_bytes(machine.memory_total_bytes), machine.memory_limit_source)
                         : fmt::format("{} ({})", format_bytes(machine.memory_bytes), machine.memory_limit_source));
  for (const NumaNode& node : machine.numa_nodes) {
    line(fmt::format("node {}", node.os_index),
         fmt::format("{}, {}, {} huge pages of 2 MiB, {} of them free", format_bytes(node.bytes),
                     node.cpu_less() ? "no CPUs" : "CPUs " + ranges_text(node.cpus), node.huge_pages,
                     node.huge_pages_free));
  }
  line("gpus", list_text(machine.gpus, 8, [](const Gpu& gpu) {
         return fmt::format("{} {} ({})", gpu.pci_bus_id, gpu.name, node_text(gpu.numa_node));
       }));
  line("disks", list_text(machine.block_devices, 16, [](const BlockDevice& device) {
         return fmt::format("{} ({})", device.name, node_text(device.numa_node));
       }));
  line("memlock", limit_text(machine.memlock_bytes));
  line("io_uring", machine.io_uring.available ? fmt::format("{}", fmt::join(machine.io_uring.features, " "))
                                              : "none: " + machine.io_uring.why_not);
  for (std::size_t i = 0; i < taken.tiers.size(); ++i) line(fmt::format("tier {}", i), taken.tiers[i]);
  for (const BlockPath& block : taken.block_paths)
    line("block file", block_path_text(block, machine.numa_nodes.size() > 1));
  for (const Lack& lack : missing)
    line("lacks", fmt::format("{}: {}. To have it: {}", lack.what, lack.cost, lack.cure));
  return text;
}

}  // namespace terrace::topology
