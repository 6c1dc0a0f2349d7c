// SPDX-License-Identifier: Apache-2.0
// A file system of the test's own (FUSE, linux/fuse.h) with one file, "block", whose reads and writes fail, hang or lie
// as the test says: what the daemon sees are the kernel's own completions.
#pragma once

#include <linux/fuse.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.h"

namespace terrace::faults {

enum class Fault : std::uint8_t {
  kNone,
  kReadFails,         // EIO
  kReadFailsOnce,     // EIO, and then kNone
  kWriteFails,        // EIO
  kReadOnly,          // writes: EROFS
  kGone,              // ENODEV, reads and writes
  kHangs,             // nothing is answered until the next set()
  kWriteLost,         // said to be done, and not done
  kWriteTorn,         // the first half of it is
  kWriteMisdirected,  // done a mebibyte further on
  kBitFlipped,        // one bit of what was written
};

// Serves on a thread of its own. Mounted where this process and its later children alone see it; gone with the object.
class FaultyDisk {
 public:
  explicit FaultyDisk(std::uint64_t bytes);
  FaultyDisk(const FaultyDisk&) = delete;
  FaultyDisk& operator=(const FaultyDisk&) = delete;
  ~FaultyDisk();

  // Why there is none: what this machine or this user may not. Empty: there is one.
  const std::string& trouble() const { return trouble_; }
  std::string file() const { return (folder_ / "block").string(); }
  // What becomes of reads and writes from now on. Thread-safe.
  void set(Fault fault) { fault_ = fault; }
  // Reads and writes that failed or were falsified, or wait now.
  std::uint64_t injected() const { return injected_; }

 private:
  std::string make();
  void serve(const std::stop_token& stop);
  void take(std::vector<std::byte> request);
  void answer(const fuse_in_header& to, int error, std::span<const std::byte> body = {}) const;
  void answer_init(const fuse_in_header& to, const fuse_init_in& asked) const;
  void answer_attribute(const fuse_in_header& to, std::span<const std::byte> request) const;
  void read(const fuse_in_header& to, const fuse_read_in& asked);
  void write(const fuse_in_header& to, const fuse_write_in& asked, std::span<const std::byte> data);
  void store(std::uint64_t offset, std::span<const std::byte> data);
  fuse_attr attributes(std::uint64_t node) const;

  std::filesystem::path folder_;
  std::string trouble_;
  Fd device_;
  std::vector<std::byte> content_;
  std::uint64_t size_ = 0;  // of the file; the content has room for the largest
  std::atomic<Fault> fault_ = Fault::kNone;
  std::atomic<std::uint64_t> injected_ = 0;
  std::deque<std::vector<std::byte>> hanging_;
  std::jthread thread_;
};

}  // namespace terrace::faults
