// SPDX-License-Identifier: Apache-2.0
// Where on a machine block files could lie.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "terrace/error.h"
#include "topology/block_path.h"

namespace terrace::proposal {

// The service's own folder, which systemd makes.
inline constexpr const char* kServiceFolder = "/var/lib/terrace";

struct Place {
  std::string path;                  // of the block file, absolute; or a block device
  std::string folder;                // that must be there; empty: the path is a device
  std::vector<std::string> drives;   // that it lies on: "nvme0n1"
  std::uint64_t room_bytes = 0;      // that is free there
  std::uint64_t file_system_id = 0;  // topology::BlockRoom::file_system_id: equal for those that share their room
};

// How much room there is at a folder or device: topology::block_room(), but for tests.
using RoomAt = std::function<Result<topology::BlockRoom>(const std::string&)>;

// The place that a user names: a folder that is there, or a block device. NotFound or FailedPrecondition if it is
// neither.
Result<Place> place_at(const std::string& named);

// From the machine's mounts: ext4 and xfs on local drives that can be written. The fastest kind of drive alone (NVMe,
// then what does not rotate), a place on each drive, what is not the system's own where there is such, and none with
// less than half the room of the largest, since block files have equal parts. Empty: nothing will do. `root` stands
// before /proc and /sys.
std::vector<Place> find_places(const std::string& root = "", const RoomAt& room_at = topology::block_room);

}  // namespace terrace::proposal
