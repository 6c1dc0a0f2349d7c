// SPDX-License-Identifier: Apache-2.0
// What this machine has: NUMA nodes, GPUs, block devices, believable memory, limits and kernel features.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "terrace/error.h"
#include "topology/cuda_probe.h"

namespace terrace::topology {

// A limit that is not there.
inline constexpr std::uint64_t kUnlimited = UINT64_MAX;

struct NumaNode {
  unsigned os_index = 0;
  std::uint64_t bytes = 0;
  std::vector<unsigned> cpus;         // empty for memory alone, such as CXL
  std::uint64_t huge_pages = 0;       // of 2 MiB: reserved
  std::uint64_t huge_pages_free = 0;  // of those, in nobody's hands

  bool cpu_less() const { return cpus.empty(); }
};

// An NVIDIA GPU, as PCI shows it: no driver is asked.
struct Gpu {
  std::string pci_bus_id;             // "0000:34:00.0"
  std::string name;                   // the model if the system knows it, else "NVIDIA device 1db8"
  std::optional<unsigned> numa_node;  // none: it hangs off no one node, or the system does not say
};

struct BlockDevice {
  std::string name;                   // "nvme0n1"
  std::optional<unsigned> numa_node;  // as Gpu's
};

// What a ring can do here, found by making one.
struct IoUring {
  bool available = false;
  int system_error = 0;               // errno if not available
  std::string why_not;                // if not available: what forbids it, and what would allow it
  std::vector<std::string> features;  // names as in io_uring_setup(2), in small letters: "ext_arg", "defer_taskrun"
  bool registers_slice = false;       // kRegisteredSliceBytes could be registered as a fixed buffer

  bool has(std::string_view feature) const;
};

// Buffers are registered with the ring in pieces of this size (registering stalls the ring's thread).
inline constexpr std::uint64_t kRegisteredSliceBytes = std::uint64_t{64} << 20;

struct Machine {
  std::vector<NumaNode> numa_nodes;  // by os_index; at least one
  std::vector<Gpu> gpus;             // by pci_bus_id
  Cuda cuda;                         // empty until the driver was asked: discover() does not
  std::vector<BlockDevice> block_devices;
  // What may be used: what hwloc or /proc/meminfo sees, the larger, but no more than the cgroup's limit. hwloc alone
  // sees a quarter of the memory on some virtual machines.
  std::uint64_t memory_bytes = 0;
  std::uint64_t memory_total_bytes = 0;  // before the cgroup's limit
  std::string memory_limit_source;  // what memory_bytes comes from: "MemTotal", "hwloc" or "cgroup /a/b/memory.max"
  std::uint64_t memlock_bytes = 0;  // locked memory that this process may have now, or kUnlimited
  std::uint64_t open_files_max = kUnlimited;  // descriptors that this process may have
  std::string kernel_version;                 // "6.1.0-18-amd64"
  IoUring io_uring;

  const NumaNode* numa_node(unsigned os_index) const;
  std::uint64_t huge_pages() const;
  std::uint64_t huge_pages_free() const;
};

// Where to look. The default is this machine; tests put in another.
struct Sources {
  std::string root;       // stands before /proc and /sys
  std::string hwloc_xml;  // a topology exported by hwloc (lstopo x.xml), with a `root` to go with it; empty: look
  std::optional<IoUring> io_uring;  // none: try
};

// Looks. Takes some tens of milliseconds, and makes and closes a ring. Internal if there is no topology to be had, with
// what was missing. What is merely absent (a GPU, io_uring) is no error here: see report.h.
Result<Machine> discover(const Sources& sources = {});

// Raises this process's limits on locked memory and on open files as far as it may (to the hard limit; of locked memory
// beyond it with the capability). Call before discover(), which reads back what came of it.
void raise_limits();

}  // namespace terrace::topology
