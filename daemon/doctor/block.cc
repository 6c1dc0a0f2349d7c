// SPDX-License-Identifier: Apache-2.0
// The block tier's paths: whether O_DIRECT works there, found by doing it, and whether there is room.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "base/bytes.h"
#include "doctor/block_trial.h"
#include "doctor/checks.h"
#include "tier/block/ownership.h"
#include "tier/block/raw_device.h"
#include "topology/block_path.h"

namespace terrace::doctor {
namespace {

// A file system that is fuller than this finds room in pieces, and slowly.
constexpr std::uint64_t kRoomLeftPercent = 5;

constexpr const char* kOtherPlace = "name a path on a local drive with ext4 or xfs in `paths` of the block tier";

Finding refused_path(const Node& node, const std::string& path, const Error& error) {
  if (is_for_want_of_rights(node, error))
    return warning(fmt::format("this user may not look at it, and the daemon's user perhaps may: {}", error.message),
                   with_more_rights(node), path);
  const std::string folder = std::filesystem::path(path).parent_path().string();
  std::error_code unknown;
  // Of a folder that is there it would change the owner, be it /dev.
  if (!std::filesystem::exists(folder, unknown))
    return failure(error.message, fmt::format("install -d -o terrace -g terrace -m 0700 {}", folder), path);
  return failure(error.message, kOtherPlace, path);
}

std::string place_text(const topology::BlockPath& found) {
  return fmt::format("{} on {}", found.file_system.empty() ? "an unknown file system" : found.file_system,
                     found.devices.empty() ? "no drive" : fmt::format("{}", fmt::join(found.devices, ", ")));
}

// What is worse than it might be of a path that works; empty: nothing.
std::string drawback(const Node& node, const topology::BlockPath& found) {
  if (found.file_system == "tmpfs" || found.file_system == "ramfs")
    return "it lies in memory, which the block tier is to spare, and does not outlive a reboot";
  if (node.machine.numa_nodes.size() > 1 && !found.numa_node)
    return "the NUMA node of its drives is unknown, or they are of several, so that transfers may cross between "
           "sockets";
  return {};
}

Finding look_at_path(const Node& node, const std::string& path) {
  if (is_silent(node, path))
    return failure(fmt::format("{}; a daemon would wait for it, too", kDoesNotAnswer), kResetDrive, path);
  const auto found = topology::inspect_block_path(path, {.root = node.root, .hwloc_xml = {}, .io_uring = {}});
  if (!found) return refused_path(node, path, found.error());
  if (const auto good = tier::check_file(path); !good) return refused_path(node, path, good.error());
  const topology::DirectIo& direct = found->direct_io;
  if (!direct.supported)
    return failure(fmt::format("{} has no O_DIRECT: {}", place_text(*found), direct.why_not), kOtherPlace, path);
  const auto alignment = std::max(direct.memory_alignment_bytes, direct.offset_alignment_bytes);
  if (alignment > kPageBytes)
    return failure(fmt::format("O_DIRECT is aligned to {} on {}, and the block tier needs {} or less",
                               format_bytes(alignment), place_text(*found), format_bytes(kPageBytes)),
                   kOtherPlace, path);
  if (tier::is_block_device(path)) return ok("a block device with a header of Terrace's, which was read", path);
  const auto tried = try_block(std::filesystem::path(path).parent_path().string());
  if (!tried) return failure(fmt::format("{}: {}", place_text(*found), tried.error().message), kOtherPlace, path);
  if (const std::string worse = drawback(node, *found); !worse.empty())
    return warning(fmt::format("O_DIRECT works on {}, but {}", place_text(*found), worse), kOtherPlace, path);
  return ok(fmt::format("{} were written with O_DIRECT on {} and read back; aligned to {}", format_bytes(kTrialBytes),
                        place_text(*found), format_bytes(alignment)),
            path);
}

// What is asked of one file system, by all files that lie there.
struct Demand {
  std::string path;  // the first of them
  topology::BlockRoom room;
  std::uint64_t asked_bytes = 0;
  std::uint64_t held_bytes = 0;
};

Finding judge(const Demand& demand) {
  const std::uint64_t room = demand.room.free_bytes + demand.held_bytes;
  const std::string figures = fmt::format("its block files are to have {}, and there is room for {}",
                                          format_bytes(demand.asked_bytes), format_bytes(room));
  if (demand.asked_bytes > room)
    return failure(figures, "make the tier's `capacity` smaller, or free room", demand.path);
  if (tier::is_block_device(demand.path)) return ok(figures, demand.path);
  std::error_code unknown;
  const auto space = std::filesystem::space(std::filesystem::path(demand.path).parent_path(), unknown);
  const std::uint64_t left = room - demand.asked_bytes;
  if (!unknown && left < space.capacity / 100 * kRoomLeftPercent)
    return warning(fmt::format("{}: that leaves {} of {}, less than {} %, and a file system so full is slow", figures,
                               format_bytes(left), format_bytes(space.capacity), kRoomLeftPercent),
                   "make the tier's `capacity` smaller, or free room", demand.path);
  return ok(figures, demand.path);
}

Findings without_block_tier(const Node& node) {
  return {not_applicable(node.refusal ? kTiersUnknown : "there is no block tier")};
}

}  // namespace

Findings check_block_path(const Node& node) {
  const config::TierConfig* block = block_tier(node.config);
  if (block == nullptr || block->paths.empty()) return without_block_tier(node);
  Findings found;
  for (const std::string& path : block->paths) found.push_back(look_at_path(node, path));
  return found;
}

Findings check_block_room(const Node& node) {
  const config::TierConfig* block = block_tier(node.config);
  if (block == nullptr || block->paths.empty()) return without_block_tier(node);
  if (block->capacity.bytes == 0) return {not_applicable(kTiersUnknown)};
  Findings found;
  std::map<std::uint64_t, Demand> demands;  // by file system
  for (const std::string& path : block->paths) {
    if (is_silent(node, path)) continue;
    const auto room = topology::block_room(path);
    if (!room) {
      found.push_back(refused_path(node, path, room.error()));
      continue;
    }
    Demand& demand = demands.try_emplace(room->file_system_id, Demand{path, *room, 0, 0}).first->second;
    demand.asked_bytes += block->capacity.bytes / block->paths.size();
    demand.held_bytes += room->held_bytes;
  }
  for (const auto& [id, demand] : demands) found.push_back(judge(demand));
  if (found.empty())
    found.push_back(not_applicable(fmt::format("{}: {}", fmt::join(block->paths, ", "), kDoesNotAnswer)));
  return found;
}

}  // namespace terrace::doctor
