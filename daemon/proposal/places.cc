// SPDX-License-Identifier: Apache-2.0
#include "proposal/places.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>

#include "tier/block/raw_device.h"
#include "topology/mounts.h"
#include "topology/text_file.h"

namespace terrace::proposal {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFileName = "terrace.block";
// The system's and its users' own.
constexpr std::array<std::string_view, 12> kNotOurs = {"/boot", "/dev",  "/etc", "/home", "/proc", "/root",
                                                       "/run",  "/snap", "/sys", "/tmp",  "/usr",  "/var/lib/docker"};

struct Candidate {
  Place place;
  topology::Mount mount;
  int speed = 0;
  bool is_the_systems = false;
};

bool is_ours(const std::string& point) {
  return std::ranges::none_of(kNotOurs, [&](std::string_view theirs) {
    return point == theirs || point.starts_with(std::string(theirs) + "/");
  });
}

// What can be written, on ext4 or xfs, and is nobody's.
std::vector<topology::Mount> usable_mounts(const std::string& root) {
  std::vector<topology::Mount> found = topology::mounts(root);
  std::erase_if(found, [&root](const topology::Mount& mount) {
    std::error_code error;
    return !mount.is_writable || (mount.file_system != "ext4" && mount.file_system != "xfs") || !is_ours(mount.point) ||
           !fs::is_directory(root + mount.point, error);
  });
  return found;
}

// 2: NVMe, 1: another drive that does not rotate, 0: one that does.
int speed_of(const std::string& root, const std::vector<std::string>& drives) {
  int least = 2;
  for (const std::string& drive : drives) {
    const bool rotates =
        topology::read_number(fmt::format("{}/sys/class/block/{}/queue/rotational", root, drive)).value_or(0) != 0;
    least = std::min(least, drive.starts_with("nvme") ? 2 : rotates ? 0 : 1);
  }
  return least;
}

bool holds_service_folder(const std::string& point) {
  return point == "/" || point == "/var" || point == "/var/lib" || point == kServiceFolder;
}

std::vector<Candidate> candidates(const std::string& root, const RoomAt& room_at) {
  std::vector<Candidate> found;
  for (const topology::Mount& mount : usable_mounts(root)) {
    Candidate candidate;
    candidate.mount = mount;
    candidate.is_the_systems = holds_service_folder(mount.point) && mount.point != kServiceFolder;
    Place& place = candidate.place;
    place.folder = holds_service_folder(mount.point) ? kServiceFolder : mount.point + "/terrace";
    place.path = place.folder + "/" + kFileName;
    for (const topology::BlockDevice& disk : topology::disks_under(mount.major, mount.minor, root))
      place.drives.push_back(disk.name);
    const auto room = room_at((mount.point == "/" ? "" : mount.point) + "/" + kFileName);
    if (!room || place.drives.empty()) continue;
    place.room_bytes = room->free_bytes;
    place.file_system_id = room->file_system_id;
    candidate.speed = speed_of(root, place.drives);
    found.push_back(std::move(candidate));
  }
  return found;
}

bool share_a_drive(const Place& one, const Place& other) {
  return std::ranges::any_of(one.drives, [&other](const std::string& drive) {
    return std::ranges::find(other.drives, drive) != other.drives.end();
  });
}

// A folder lies on one file system: that whose mount point is the longest. A file system is mounted in several places:
// the shortest is meant. Of several on one drive the largest is taken.
bool gives_way(const Candidate& one, const Candidate& other) {
  if (one.place.folder == other.place.folder) return one.mount.point.size() < other.mount.point.size();
  const bool is_same = one.mount.major == other.mount.major && one.mount.minor == other.mount.minor;
  if (is_same) return one.mount.point.size() > other.mount.point.size();
  const bool is_smaller = one.place.room_bytes != other.place.room_bytes ? one.place.room_bytes < other.place.room_bytes
                                                                         : one.place.path > other.place.path;
  return is_smaller && share_a_drive(one.place, other.place);
}

void keep(std::vector<Candidate>& all, const std::function<bool(const Candidate&)>& wanted) {
  if (std::ranges::any_of(all, wanted)) std::erase_if(all, std::not_fn(wanted));
}

}  // namespace

Result<Place> place_at(const std::string& named) {
  std::error_code error;
  const fs::path absolute = fs::absolute(named, error).lexically_normal();
  const bool is_device = tier::is_block_device(absolute.string());
  if (!is_device && !fs::is_directory(absolute, error))
    return fail(ErrorCode::kNotFound,
                fmt::format("{} is neither a folder nor a block device; make the folder first", named));
  Place place;
  place.folder = is_device ? "" : absolute.has_filename() ? absolute.string() : absolute.parent_path().string();
  place.path = is_device ? absolute.string() : (fs::path(place.folder) / kFileName).string();
  const auto room = topology::block_room(place.path);
  if (!room) return std::unexpected(room.error());
  place.room_bytes = room->free_bytes + room->held_bytes;
  place.file_system_id = room->file_system_id;
  struct stat status{};
  if (::stat(absolute.c_str(), &status) == 0) {
    const dev_t device = is_device ? status.st_rdev : status.st_dev;
    for (const topology::BlockDevice& disk : topology::disks_under(major(device), minor(device)))
      place.drives.push_back(disk.name);
  }
  return place;
}

std::vector<Place> find_places(const std::string& root, const RoomAt& room_at) {
  std::vector<Candidate> found = candidates(root, room_at);
  const std::vector<Candidate> all = found;
  std::erase_if(found, [&all](const Candidate& one) {
    return std::ranges::any_of(all, [&one](const Candidate& other) { return gives_way(one, other); });
  });
  int fastest = 0;
  for (const Candidate& each : found) fastest = std::max(fastest, each.speed);
  keep(found, [fastest](const Candidate& each) { return each.speed == fastest; });
  keep(found, [](const Candidate& each) { return !each.is_the_systems; });
  std::uint64_t most = 0;
  for (const Candidate& each : found) most = std::max(most, each.place.room_bytes);
  keep(found, [most](const Candidate& each) { return each.place.room_bytes >= most / 2; });
  std::vector<Place> places;
  for (Candidate& each : found) places.push_back(std::move(each.place));
  std::ranges::sort(places, {}, &Place::path);
  return places;
}

}  // namespace terrace::proposal
