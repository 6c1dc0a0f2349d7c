// SPDX-License-Identifier: Apache-2.0
// What lies under the path of a block tier's file: the file system, its devices and their NUMA node, its room, and how
// O_DIRECT must be aligned there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "terrace/error.h"
#include "topology/machine.h"

namespace terrace::topology {

struct DirectIo {
  bool supported = false;
  std::uint32_t memory_alignment_bytes = 0;
  std::uint32_t offset_alignment_bytes = 0;  // of offset and length
  // "statx" (the kernel says so), "probe" (4 KiB were written and read), or "holder": a daemon has it, which has tried.
  std::string source;
  std::string why_not;  // if not supported
};

struct BlockPath {
  std::string path;
  std::string file_system;            // "ext4"; empty if unknown
  std::uint64_t file_system_id = 0;   // st_dev: equal for paths that share their room
  std::vector<std::string> devices;   // whole disks: "nvme0n1"; several under md or LVM; empty if on none (tmpfs)
  std::optional<unsigned> numa_node;  // of the devices, if it is one
  std::uint64_t room_bytes = 0;       // what the file may grow to: free to this user, and what it has already
  DirectIo direct_io;                 // tried on a nameless file in the folder, or on the file itself if it is there
};

// How much a file at a path may hold.
struct BlockRoom {
  std::uint64_t file_system_id = 0;  // st_dev; of a block device its own number
  std::uint64_t free_bytes = 0;      // free to this user on the file system; of a block device all of it
  std::uint64_t held_bytes = 0;      // what the file has already, if it is there
};

// NotFound if neither the file at `path` nor its folder is there, FailedPrecondition if it is neither a regular file
// nor a block device.
Result<BlockRoom> block_room(const std::string& path);

// Looks at `path`, a file that exists or whose folder does. NotFound if neither does, PermissionDenied if the folder
// cannot be written. Writes nothing into a file that exists, and reads nothing from one that a daemon holds.
Result<BlockPath> inspect_block_path(const std::string& path, const Sources& sources = {});

// The whole disks under the block device `major`:`minor` (a partition, md or LVM volume leads to its disks), with their
// NUMA nodes; empty if there is no such block device.
std::vector<BlockDevice> disks_under(unsigned major, unsigned minor, const std::string& root = "");

}  // namespace terrace::topology
