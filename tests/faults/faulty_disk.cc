// SPDX-License-Identifier: Apache-2.0
#include "faults/faulty_disk.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

namespace terrace::faults {
namespace {

constexpr std::uint64_t kRoot = 1;
constexpr std::uint64_t kFile = 2;
constexpr std::uint64_t kMebibyte = 1 << 20;
constexpr std::uint32_t kWriteBytesMax = 1 << 20;
constexpr std::size_t kRequestBytesMax = kWriteBytesMax + 65536;

// The body of a request as the struct that its operation has.
template <typename T>
T body_of(std::span<const std::byte> request) {
  T body{};
  std::memcpy(&body, request.data() + sizeof(fuse_in_header),
              std::min(sizeof body, request.size() - sizeof(fuse_in_header)));
  return body;
}

template <typename T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

bool moves_bytes(std::uint32_t operation) { return operation == FUSE_READ || operation == FUSE_WRITE; }

}  // namespace

FaultyDisk::FaultyDisk(std::uint64_t bytes)
    : folder_(std::filesystem::temp_directory_path() / ("terrace-faulty-" + std::to_string(::getpid()))),
      content_(bytes + kMebibyte) {
  std::filesystem::create_directories(folder_);
  trouble_ = make();
  if (trouble_.empty()) thread_ = std::jthread([this](const std::stop_token& stop) { serve(stop); });
}

FaultyDisk::~FaultyDisk() {
  set(Fault::kNone);
  ::umount2(folder_.c_str(), MNT_DETACH);
  if (thread_.joinable()) {
    thread_.request_stop();
    thread_.join();
  }
  std::error_code ignored;
  std::filesystem::remove(folder_, ignored);
}

std::string FaultyDisk::make() {
  const auto failed = [](const char* what) { return std::string(what) + ": " + std::strerror(errno); };
  if (::unshare(CLONE_NEWNS | CLONE_FS) != 0) return failed("a mount namespace");
  if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return failed("private mounts");
  device_ = Fd(::open("/dev/fuse", O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (!device_) return failed("/dev/fuse");
  const std::string options = "fd=" + std::to_string(device_.get()) +
                              ",rootmode=40000,user_id=" + std::to_string(::getuid()) +
                              ",group_id=" + std::to_string(::getgid());
  if (::mount("terrace-test", folder_.c_str(), "fuse", MS_NOSUID | MS_NODEV, options.c_str()) != 0)
    return failed("mounting a FUSE file system");
  return {};
}

void FaultyDisk::serve(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    if (fault_ != Fault::kHangs)
      for (std::vector<std::byte>& request : std::exchange(hanging_, {})) take(std::move(request));
    pollfd ready{device_.get(), POLLIN, 0};
    if (::poll(&ready, 1, 5) <= 0) continue;
    std::vector<std::byte> request(kRequestBytesMax);
    const ssize_t count = ::read(device_.get(), request.data(), request.size());
    if (count < 0 && errno == ENODEV) return;  // unmounted
    if (count < static_cast<ssize_t>(sizeof(fuse_in_header))) continue;
    request.resize(static_cast<std::size_t>(count));
    take(std::move(request));
  }
}

void FaultyDisk::take(std::vector<std::byte> request) {
  fuse_in_header header{};
  std::memcpy(&header, request.data(), sizeof header);
  if (moves_bytes(header.opcode) && fault_ == Fault::kHangs) {
    ++injected_;
    hanging_.push_back(std::move(request));
    return;
  }
  switch (header.opcode) {
    case FUSE_INIT:
      return answer_init(header, body_of<fuse_init_in>(request));
    case FUSE_LOOKUP: {
      fuse_entry_out found{};
      found.nodeid = kFile;
      found.attr = attributes(kFile);
      const bool ours = std::strcmp(reinterpret_cast<const char*>(request.data() + sizeof header), "block") == 0;
      return ours ? answer(header, 0, bytes_of(found)) : answer(header, ENOENT);
    }
    case FUSE_SETATTR:
      if (const auto asked = body_of<fuse_setattr_in>(request); (asked.valid & FATTR_SIZE) != 0)
        size_ = std::min<std::uint64_t>(asked.size, content_.size() - kMebibyte);
      [[fallthrough]];
    case FUSE_GETATTR: {
      fuse_attr_out out{};
      out.attr = attributes(header.nodeid);
      return answer(header, 0, bytes_of(out));
    }
    case FUSE_OPEN:
    case FUSE_OPENDIR: {
      fuse_open_out out{};
      out.open_flags = FOPEN_DIRECT_IO;
      return answer(header, 0, bytes_of(out));
    }
    case FUSE_STATFS: {
      fuse_statfs_out out{};
      out.st.bsize = out.st.frsize = 4096;
      out.st.blocks = out.st.bfree = out.st.bavail = (content_.size() - kMebibyte) / 4096;
      return answer(header, 0, bytes_of(out));
    }
    case FUSE_FALLOCATE: {
      const auto asked = body_of<fuse_fallocate_in>(request);
      if (asked.offset + asked.length > content_.size() - kMebibyte) return answer(header, ENOSPC);
      if (asked.mode == 0) size_ = std::max(size_, asked.offset + asked.length);
      return answer(header, 0);
    }
    case FUSE_READ:
      return read(header, body_of<fuse_read_in>(request));
    case FUSE_WRITE:
      return write(header, body_of<fuse_write_in>(request),
                   std::span(request).subspan(sizeof header + sizeof(fuse_write_in)));
    case FUSE_FLUSH:
    case FUSE_FSYNC:
    case FUSE_RELEASE:
    case FUSE_RELEASEDIR:
    case FUSE_UNLINK:
      return answer(header, 0);
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT:
      return;  // nobody waits for an answer
    case FUSE_SETXATTR:
      return answer(header, 0);
    case FUSE_GETXATTR:
      return answer_attribute(header, request);
    default:
      return answer(header, ENOSYS);
  }
}

void FaultyDisk::answer(const fuse_in_header& to, int error, std::span<const std::byte> body) const {
  fuse_out_header header{};
  header.len = static_cast<std::uint32_t>(sizeof header + body.size());
  header.error = -error;
  header.unique = to.unique;
  const std::array<iovec, 2> parts{iovec{&header, sizeof header},
                                   iovec{const_cast<std::byte*>(body.data()), body.size()}};
  [[maybe_unused]] const ssize_t written = ::writev(device_.get(), parts.data(), body.empty() ? 1 : 2);
}

void FaultyDisk::answer_init(const fuse_in_header& to, const fuse_init_in& asked) const {
  fuse_init_out out{};
  out.major = FUSE_KERNEL_VERSION;
  out.minor = std::min<std::uint32_t>(asked.minor, FUSE_KERNEL_MINOR_VERSION);
  out.max_readahead = asked.max_readahead;
  out.flags = FUSE_BIG_WRITES | FUSE_MAX_PAGES | FUSE_ASYNC_DIO | FUSE_PARALLEL_DIROPS;
  out.max_background = 64;
  out.congestion_threshold = 64;
  out.max_write = kWriteBytesMax;
  out.max_pages = kWriteBytesMax / 4096;
  out.time_gran = 1;
  answer(to, 0, bytes_of(out));
}

// The file has the daemon's mark, and no other attribute.
void FaultyDisk::answer_attribute(const fuse_in_header& to, std::span<const std::byte> request) const {
  const auto asked = body_of<fuse_getxattr_in>(request);
  const auto* name = reinterpret_cast<const char*>(request.data() + sizeof to + sizeof asked);
  if (std::strcmp(name, "user.terrace.block") != 0) return answer(to, ENODATA);
  const char mark = '1';
  fuse_getxattr_out size{};
  size.size = 1;
  answer(to, 0, asked.size == 0 ? bytes_of(size) : bytes_of(mark));
}

fuse_attr FaultyDisk::attributes(std::uint64_t node) const {
  fuse_attr out{};
  out.ino = node;
  out.mode = node == kRoot ? S_IFDIR | 0700 : S_IFREG | 0600;
  out.nlink = 1;
  out.uid = ::getuid();
  out.gid = ::getgid();
  out.size = node == kRoot ? 0 : size_;
  out.blocks = out.size / 512;
  out.blksize = 4096;
  return out;
}

void FaultyDisk::read(const fuse_in_header& to, const fuse_read_in& asked) {
  if (fault_ == Fault::kReadFails || fault_ == Fault::kReadFailsOnce) {
    ++injected_;
    if (fault_ == Fault::kReadFailsOnce) fault_ = Fault::kNone;
    return answer(to, EIO);
  }
  if (fault_ == Fault::kGone) {
    ++injected_;
    return answer(to, ENODEV);
  }
  const std::uint64_t begin = std::min(asked.offset, size_);
  answer(to, 0, std::span(content_).subspan(begin, std::min<std::uint64_t>(asked.size, size_ - begin)));
}

void FaultyDisk::write(const fuse_in_header& to, const fuse_write_in& asked, std::span<const std::byte> data) {
  const Fault fault = fault_;
  if (fault != Fault::kNone && fault != Fault::kReadFails) ++injected_;
  if (fault == Fault::kWriteFails) return answer(to, EIO);
  if (fault == Fault::kReadOnly) return answer(to, EROFS);
  if (fault == Fault::kGone) return answer(to, ENODEV);
  if (asked.offset + data.size() > size_) return answer(to, ENOSPC);
  if (fault == Fault::kWriteTorn) {
    store(asked.offset, data.first(data.size() / 2));
  } else if (fault == Fault::kWriteMisdirected) {
    store(asked.offset + kMebibyte, data);
  } else if (fault != Fault::kWriteLost) {
    store(asked.offset, data);
  }
  if (fault == Fault::kBitFlipped) content_[asked.offset + data.size() / 3] ^= std::byte{0x10};
  fuse_write_out out{};
  out.size = static_cast<std::uint32_t>(data.size());
  answer(to, 0, bytes_of(out));
}

void FaultyDisk::store(std::uint64_t offset, std::span<const std::byte> data) {
  std::ranges::copy(data, content_.begin() + static_cast<std::ptrdiff_t>(offset));
}

}  // namespace terrace::faults
