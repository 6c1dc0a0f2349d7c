// SPDX-License-Identifier: Apache-2.0
#include "proposal/write.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/bytes.h"
#include "base/fd.h"

namespace terrace::proposal {
namespace {

// A TOML basic string.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') {
      out += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

// "256MiB": exact, in the largest unit that divides it.
std::string size_text(std::uint64_t bytes) {
  if (bytes % kGiB == 0) return fmt::format("{}GiB", bytes / kGiB);
  return bytes % kMiB == 0 ? fmt::format("{}MiB", bytes / kMiB) : fmt::format("{}", bytes);
}

std::string head(const Proposal& proposal) {
  return fmt::format(
      "# A configuration of terraced, which `terracectl init` wrote for this machine: {}.\n"
      "# docs/reference/configuration.md has every key. After a change: terracectl doctor --config FILE\n",
      proposal.machine);
}

std::string sockets(const Wishes& wishes) {
  std::string text;
  if (wishes.metrics_address)
    text += fmt::format("\n# Where Prometheus scrapes /metrics: as it was asked for.\nmetrics_address = {}\n",
                        quoted(*wishes.metrics_address));
  if (wishes.sockets_folder.empty())
    return text +
           "\n# Sockets lie in /run/terrace for root, and in $XDG_RUNTIME_DIR/terrace for everyone else: the "
           "default.\n";
  const auto path = [&](const char* name) { return quoted(wishes.sockets_folder + "/" + name); };
  return text + fmt::format("\n# In the folder that was asked for.\n[sockets]\ndata = {}\ngrpc = {}\nadmin = {}\n",
                            path("data.sock"), path("terraced.sock"), path("admin.sock"));
}

std::string device_tier(const Proposal& proposal) {
  if (!proposal.device_why) return fmt::format("\n# No device tier: {}.\n", proposal.no_device_why);
  return fmt::format(
      "\n[[tier]]\nkind = \"device\"\n# Every GPU that the driver gives.\ndevice = \"auto\"\n# {} % {}.\ncapacity = "
      "\"{}%\"\n",
      kDevicePercent, *proposal.device_why, kDevicePercent);
}

std::string memory_tier(const Proposal& proposal) {
  return fmt::format("\n[[tier]]\nkind = \"memory\"\n# {}: {}.\ncapacity = \"{}\"\n",
                     format_bytes(proposal.memory.bytes), proposal.memory.why, size_text(proposal.memory.bytes));
}

// What an operator does before the first start, for folders that nothing makes.
std::string to_be_made(const std::vector<Place>& places) {
  std::vector<std::string> folders;
  for (const Place& place : places) {
    std::error_code error;
    if (!place.folder.empty() && place.folder != kServiceFolder && !std::filesystem::is_directory(place.folder, error))
      folders.push_back(place.folder);
  }
  if (folders.empty()) return {};
  return fmt::format(
      "# Make the folders first:  install -d -o terrace -g terrace -m 0700 {0}\n"
      "# and let the service write there (`systemctl edit terraced`):  [Service]  ReadWritePaths={0}\n",
      fmt::join(folders, " "));
}

std::string block_tier(const Proposal& proposal) {
  if (!proposal.block) return fmt::format("\n# No block tier: {}.\n", proposal.no_block_why);
  std::vector<std::string> paths;
  std::vector<std::string> drives;
  for (const Place& place : proposal.block->places) {
    paths.push_back(quoted(place.path));
    drives.push_back(place.drives.empty() ? "an unknown drive" : fmt::format("{}", fmt::join(place.drives, " and ")));
  }
  return fmt::format(
      "\n[[tier]]\nkind = \"block\"\n# {}: {}. This tier holds every tensor's home.\ncapacity = \"{}\"\n# On "
      "{}.\n{}paths = "
      "[{}]\n# write_budget = \"7.68TB/day\"  # what the drives are rated for; without it there is no limit\n",
      format_bytes(proposal.block->capacity.bytes), proposal.block->capacity.why,
      size_text(proposal.block->capacity.bytes), fmt::join(drives, ", "), to_be_made(proposal.block->places),
      fmt::join(paths, ", "));
}

constexpr const char* kTail =
    "\n# Beside root and the daemon's own user nobody may connect: write the ids of the users who train.\n"
    "# [[tenant]]\n# name = \"default\"\n# uids = [1000, 1001]\n"
    "\n# How fast the drives are, for the plan: terrace-bench calibrate --dir FOLDER measures it, for [links].\n";

Error failed(const std::string& path, const char* what, int error) {
  const ErrorCode code = error == EEXIST                                       ? ErrorCode::kAlreadyExists
                         : error == ENOENT || error == ENOTDIR                 ? ErrorCode::kNotFound
                         : error == EACCES || error == EPERM || error == EROFS ? ErrorCode::kPermissionDenied
                                                                               : ErrorCode::kInternal;
  return {code, fmt::format("{}: {}: {}", path, what, std::strerror(error)), error};
}

Result<void> fill(const std::string& path, int fd, const std::string& text) {
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t put = ::write(fd, text.data() + done, text.size() - done);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return std::unexpected(failed(path, "cannot be written", put == 0 ? EIO : errno));
    done += static_cast<std::size_t>(put);
  }
  constexpr mode_t kReadableByAll = 0644;
  if (::fchmod(fd, kReadableByAll) != 0 || ::fsync(fd) != 0)
    return std::unexpected(failed(path, "cannot be written", errno));
  return {};
}

// rename(2) takes the place of anything but a folder: of a device file, too, as of /dev/null.
Result<void> check_replaceable(const std::string& path) {
  struct stat status{};
  if (::lstat(path.c_str(), &status) != 0 || S_ISREG(status.st_mode)) return {};
  return fail(ErrorCode::kFailedPrecondition,
              fmt::format("{} is no regular file, and --force replaces nothing else; name the file itself", path));
}

}  // namespace

std::string to_toml(const Proposal& proposal) {
  return head(proposal) + sockets(proposal.wishes) + device_tier(proposal) + memory_tier(proposal) +
         block_tier(proposal) + kTail;
}

Result<void> write_file(const std::string& path, const std::string& text, bool replaces) {
  if (replaces)
    if (const auto good = check_replaceable(path); !good) return std::unexpected(good.error());
  std::string beside = path + ".XXXXXX";
  const Fd file(::mkostemp(beside.data(), O_CLOEXEC));
  if (!file) return std::unexpected(failed(path, "cannot be made", errno));
  Result<void> done = fill(path, file.get(), text);
  // link(2) takes nobody's place.
  if (done && !replaces && ::link(beside.c_str(), path.c_str()) != 0)
    done = std::unexpected(
        errno == EEXIST ? Error{ErrorCode::kAlreadyExists, fmt::format("{} is there; --force replaces it", path), errno}
                        : failed(path, "cannot be made", errno));
  if (done && replaces && ::rename(beside.c_str(), path.c_str()) != 0)
    done = std::unexpected(failed(path, "cannot be replaced", errno));
  ::unlink(beside.c_str());
  return done;
}

}  // namespace terrace::proposal
