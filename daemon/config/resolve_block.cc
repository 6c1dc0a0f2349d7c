// SPDX-License-Identifier: Apache-2.0
// A block tier's files and their room.
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <system_error>
#include <vector>

#include "base/bytes.h"
#include "config/capacity.h"
#include "config/resolve_parts.h"
#include "tier/block/ownership.h"
#include "tier/block/raw_device.h"
#include "topology/block_path.h"

namespace terrace::config {
namespace {

namespace fs = std::filesystem;

// One name for each file, however its path was written.
std::string identity(const std::string& path) {
  struct stat facts{};
  if (::stat(path.c_str(), &facts) == 0 && S_ISBLK(facts.st_mode)) return fmt::format("device {}", facts.st_rdev);
  if (::stat(path.c_str(), &facts) == 0) return fmt::format("{}:{}", facts.st_dev, facts.st_ino);
  std::error_code unreadable;
  return fs::weakly_canonical(path, unreadable).string();
}

// What is wrong with the file at one path, whatever its room; empty if nothing is.
std::string why_no_block_file(const std::string& path, const Result<topology::BlockPath>& found) {
  std::error_code none;
  if (fs::is_symlink(path, none) && !fs::exists(path, none))
    return fmt::format("{}: it is a symbolic link to nothing; name the file itself, or make what it leads to", path);
  if (!found) return found.error().message;
  if (const auto good = tier::check_file(path); !good) return good.error().message;
  const topology::DirectIo& direct = found->direct_io;
  if (!direct.supported)
    return fmt::format(
        "{}: its file system ({}) has no O_DIRECT: {}; put the file on one that has, such as ext4 or xfs", path,
        found->file_system.empty() ? "unknown" : found->file_system, direct.why_not);
  const auto alignment = std::max(direct.memory_alignment_bytes, direct.offset_alignment_bytes);
  if (alignment > kPageBytes)
    return fmt::format("{}: O_DIRECT is aligned to {} here, and a block tier needs {} or less", path,
                       format_bytes(alignment), format_bytes(kPageBytes));
  return "";
}

// What the files may hold together in equal parts: every file must find its part, and files on one file system share
// its room. None if something is wrong with one of them.
std::optional<std::uint64_t> room_of(const TierConfig& tier, Findings& findings) {
  struct Room {
    std::uint64_t bytes = 0;
    std::uint64_t files = 0;
  };
  std::map<std::uint64_t, Room> rooms;
  std::map<std::string, std::string> paths;  // by identity
  bool good = true;
  for (const std::string& path : tier.paths) {
    const Result<topology::BlockPath> found = topology::inspect_block_path(path);
    std::string wrong = why_no_block_file(path, found);
    const auto [same, is_new] = paths.emplace(identity(path), path);
    if (wrong.empty() && !is_new)
      wrong = fmt::format("{} is the same file as {}; each stripe needs a file of its own", path, same->second);
    if (!wrong.empty()) {
      findings.complain(tier.origin, "paths", wrong);
      good = false;
      continue;
    }
    const Result<topology::BlockRoom> room = topology::block_room(path);
    if (!room) {
      findings.complain(tier.origin, "paths", room.error().message);
      return std::nullopt;
    }
    Room& shared = rooms[room->file_system_id];
    const std::uint64_t header = tier::is_block_device(path) ? tier::kDeviceHeaderBytes : 0;
    const std::uint64_t free_bytes = room->free_bytes - std::min(header, room->free_bytes);
    shared.bytes = std::max(shared.bytes, free_bytes) + room->held_bytes;
    shared.files += 1;
  }
  if (!good || rooms.empty()) return std::nullopt;
  std::uint64_t part_bytes_max = UINT64_MAX;
  for (const auto& [id, room] : rooms) part_bytes_max = std::min(part_bytes_max, room.bytes / room.files);
  return part_bytes_max * tier.paths.size();
}

}  // namespace

std::string exact(std::uint64_t bytes) { return fmt::format("{} ({} bytes)", format_bytes(bytes), bytes); }

std::uint64_t part_of(std::uint64_t whole, double percent) {
  return static_cast<std::uint64_t>(static_cast<double>(whole) * (percent / 100));
}

void resolve_block(TierConfig& tier, Findings& findings) {
  const std::optional<std::uint64_t> room_bytes = room_of(tier, findings);
  if (!room_bytes || findings.unreadable(tier.origin, "paths")) return;
  if (tier.capacity.percent) tier.capacity.bytes = part_of(*room_bytes, *tier.capacity.percent);
  const std::uint64_t wanted = tier.capacity.bytes;
  const std::uint64_t row = kStripeBytes * tier.paths.size();
  tier.capacity.bytes -= wanted % row;
  const auto complain = [&](const std::string& what) { findings.complain(tier.origin, "capacity", what); };
  if (tier.capacity.bytes == 0)
    return complain(fmt::format("comes to {}, and each of the {} files takes {} at least; there is room for {}",
                                exact(wanted), tier.paths.size(), format_bytes(kStripeBytes), exact(*room_bytes)));
  if (tier.capacity.bytes > *room_bytes)
    return complain(
        fmt::format("is {}, and its file systems have room for {}; write that or less, or a part such as "
                    "\"80%\"",
                    exact(tier.capacity.bytes), exact(*room_bytes)));
  if (tier.capacity.bytes != wanted && !tier.capacity.percent)
    findings.warn(tier.origin, "capacity",
                  fmt::format("of {}, {} are used: each file has whole stripes of {}", exact(wanted),
                              exact(tier.capacity.bytes), format_bytes(kStripeBytes)));
}

}  // namespace terrace::config
