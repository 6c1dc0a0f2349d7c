// SPDX-License-Identifier: Apache-2.0
#include "tier/block/raw_device.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>

#include "tier/block/signatures.h"
#include "tier/block/xxh3.h"

namespace terrace::tier {
namespace {

constexpr std::array<char, 16> kHeaderMagic = {'T', 'E', 'R', 'R', 'A', 'C',  'E',  ' ',
                                               'B', 'L', 'O', 'C', 'K', '\r', '\n', '\0'};
constexpr std::uint32_t kHeaderVersion = 1;

struct DeviceHeader {
  std::array<char, 16> magic = kHeaderMagic;
  std::uint32_t version = kHeaderVersion;
  std::uint32_t header_bytes = static_cast<std::uint32_t>(kDeviceHeaderBytes);
  std::uint64_t checksum = 0;  // XXH3_64bits of the whole mebibyte with zeros here: what is written there is noticed
};
static_assert(sizeof(DeviceHeader) == 32 && offsetof(DeviceHeader, checksum) == 24);

// For direct reads and writes.
class Mebibyte {
 public:
  Mebibyte() : memory_(std::aligned_alloc(kPageBytes, kMiB), &std::free) { std::memset(memory_.get(), 0, kMiB); }
  std::span<std::byte> bytes() { return {static_cast<std::byte*>(memory_.get()), kMiB}; }

 private:
  std::unique_ptr<void, decltype(&std::free)> memory_;
};

std::unexpected<Error> refused(const std::string& path, const std::string& why, int error = 0) {
  return fail(ErrorCode::kFailedPrecondition, fmt::format("block device {}: {}", path, why), error);
}

std::unexpected<Error> system_fail(const std::string& path, const char* what, int error) {
  const bool may_not = error == EACCES || error == EPERM || error == EROFS;
  return fail(may_not ? ErrorCode::kPermissionDenied : ErrorCode::kInternal,
              fmt::format("block device {}: {}: {}", path, what, std::strerror(error)), error);
}

Result<void> read_at(const std::string& path, int fd, std::uint64_t offset, std::span<std::byte> bytes) {
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t got = ::pread(fd, bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
    if (got <= 0) return system_fail(path, "cannot be read", got == 0 ? EIO : errno);
    done += static_cast<std::size_t>(got);
  }
  return {};
}

Result<void> write_first(const std::string& path, int fd, std::span<const std::byte> bytes) {
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t put = ::pwrite(fd, bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
    if (put <= 0) return system_fail(path, "cannot be written", put == 0 ? EIO : errno);
    done += static_cast<std::size_t>(put);
  }
  return ::fsync(fd) == 0 ? Result<void>() : system_fail(path, "cannot be written", errno);
}

std::uint64_t sum_of(DeviceHeader header, std::span<std::byte> mebibyte) {
  header.checksum = 0;
  std::memcpy(mebibyte.data(), &header, sizeof header);
  return XXH3_64bits(mebibyte.data(), mebibyte.size());
}

}  // namespace

bool is_block_device(const std::string& path) {
  struct stat facts{};
  return ::stat(path.c_str(), &facts) == 0 && S_ISBLK(facts.st_mode);
}

std::uint64_t device_bytes(int fd) {
  std::uint64_t bytes = 0;
  return ::ioctl(fd, BLKGETSIZE64, &bytes) == 0 ? bytes : 0;
}

Result<void> check_device_header(const std::string& path, int fd) {
  if (device_bytes(fd) < 2 * kDeviceHeaderBytes)
    return refused(path, fmt::format("has {}; a header of 1 MiB and a stripe of 1 MiB need 2 MiB",
                                     format_bytes(device_bytes(fd))));
  Mebibyte first;
  if (auto read = read_at(path, fd, 0, first.bytes()); !read) return read;
  DeviceHeader header;
  std::memcpy(&header, first.bytes().data(), sizeof header);
  if (header.magic != kHeaderMagic) {
    const std::string there = what_is_there(first.bytes(), {});
    return refused(path,
                   fmt::format("no terraced formatted it{}; if all that is on it may go, run `terracectl format {}`",
                               there.empty() ? "" : ", and there is " + there, path));
  }
  if (header.version != kHeaderVersion || header.header_bytes != kDeviceHeaderBytes)
    return refused(path, fmt::format("its header has version {}, and this daemon knows version {}", header.version,
                                     kHeaderVersion));
  if (sum_of(header, first.bytes()) != header.checksum)
    return refused(path,
                   "something else was written over the header that a terraced gave it; if all that is on it may go, "
                   "clear its first mebibyte, and run `terracectl format` again");
  return {};
}

Result<Fd> claim_device(const std::string& path) {
  Fd claim(::open(path.c_str(), O_RDONLY | O_EXCL | O_CLOEXEC | O_NONBLOCK));
  if (claim) return claim;
  if (errno == EBUSY)
    return refused(path, "is mounted, or in use otherwise (swap, LVM, md, another daemon); free it, or name another",
                   EBUSY);
  return system_fail(path, "cannot be opened", errno);
}

Result<void> format_device(const std::string& path) {
  if (!is_block_device(path))
    return refused(path, "is no block device; a block tier's file needs no formatting, the daemon makes it");
  const auto claim = claim_device(path);
  if (!claim) return std::unexpected(claim.error());
  const Fd device(::open(path.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC | O_NONBLOCK));
  if (!device) return system_fail(path, "cannot be opened for reading and writing", errno);
  if (::flock(device.get(), LOCK_EX | LOCK_NB) != 0)
    return refused(path, "a daemon holds it; stop that one first", errno);
  if (check_device_header(path, device.get())) return {};
  const std::uint64_t bytes = device_bytes(device.get());
  if (bytes < 2 * kDeviceHeaderBytes)
    return refused(path, fmt::format("has {}, and 2 MiB are needed at least", format_bytes(bytes)));
  Mebibyte first;
  Mebibyte last;
  const std::uint64_t tail = align_down(bytes, kPageBytes) - kMiB;
  if (auto read = read_at(path, device.get(), 0, first.bytes()); !read) return read;
  if (auto read = read_at(path, device.get(), tail, last.bytes()); !read) return read;
  if (const std::string there = what_is_there(first.bytes(), last.bytes()); !there.empty())
    return refused(path, fmt::format("there is {} on it; if all that may go, clear its first and its last mebibyte "
                                     "(`wipefs -a` and `blkdiscard -z`, or dd), and run this again",
                                     there));
  DeviceHeader header;
  header.checksum = sum_of(header, first.bytes());
  std::memcpy(first.bytes().data(), &header, sizeof header);
  return write_first(path, device.get(), first.bytes());
}

}  // namespace terrace::tier
