// SPDX-License-Identifier: Apache-2.0
// Shows what a failing disk costs, with real ones: a loop device whose backing file has no room left, or loses
// what was written, and a block file that is cut short. Errors are typed and counted, bytes are right or reported as
// lost, and the daemon serves on. Loop devices need privileges: without them those tests are skipped by name.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/loop.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cstring>

#include "base/fd.h"
#include "faults/cases.h"

namespace terrace::faults {
namespace {

using e2e::fill;
using e2e::first_difference;
using e2e::kMiB;
using e2e::Terraced;

constexpr std::uint64_t kDiskBytes = 96 * kMiB;
constexpr std::uint64_t kDiskTierMib = 64;
constexpr std::uint64_t kDiskTensors = 6;

// An ext4 on a loop device, whose backing file lies sparse in a file system of its own, of memory. Mounted where this
// process and its children alone see it.
class LoopDisk {
 public:
  LoopDisk() : folder_(std::filesystem::temp_directory_path() / ("terrace-disk-" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(folder_ / "backing");
    std::filesystem::create_directories(folder_ / "mounted");
    trouble_ = make();
  }
  LoopDisk(const LoopDisk&) = delete;
  LoopDisk& operator=(const LoopDisk&) = delete;
  ~LoopDisk() {
    ::umount2((folder_ / "mounted").c_str(), MNT_DETACH);
    device_ = {};
    backing_ = {};
    ::umount2((folder_ / "backing").c_str(), MNT_DETACH);
    std::filesystem::remove_all(folder_);
  }

  // Why there is none: what this machine or this user may not. Empty: there is one.
  const std::string& trouble() const { return trouble_; }
  std::string file() const { return (folder_ / "mounted" / "block").string(); }
  // No write to where nothing was written before succeeds from now on.
  void fill_up() const {
    const Fd ballast(::open((folder_ / "backing" / "ballast").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    const std::vector<char> block(4096, 'b');
    while (::write(ballast.get(), block.data(), block.size()) > 0) {
    }
    ASSERT_EQ(errno, ENOSPC);
  }
  void make_room() const { ASSERT_TRUE(std::filesystem::remove(folder_ / "backing" / "ballast")); }
  // What was written so far reads as zeros, without an error.
  void lose_everything() const {
    ASSERT_EQ(::ftruncate(backing_.get(), 0), 0);
    ASSERT_EQ(::ftruncate(backing_.get(), kDiskBytes), 0);
  }

 private:
  static std::string failed(const std::string& what) { return what + ": " + std::strerror(errno); }

  std::string make() {
    if (::unshare(CLONE_NEWNS) != 0) return failed("a mount namespace");
    if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return failed("private mounts");
    const std::string size = "size=" + std::to_string(kDiskBytes);
    if (::mount("none", (folder_ / "backing").c_str(), "tmpfs", 0, size.c_str()) != 0) return failed("a tmpfs");
    backing_ = Fd(::open((folder_ / "backing" / "disk").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (!backing_ || ::ftruncate(backing_.get(), kDiskBytes) != 0) return failed("the backing file");
    if (const std::string why = attach(); !why.empty()) return why;
    if (std::system(("mkfs.ext4 -q -O ^has_journal " + device_path_).c_str()) != 0) return "mkfs.ext4";
    if (::mount(device_path_.c_str(), (folder_ / "mounted").c_str(), "ext4", 0, "errors=continue") != 0)
      return failed("mounting " + device_path_);
    return {};
  }
  std::string attach() {
    const Fd control(::open("/dev/loop-control", O_RDWR | O_CLOEXEC));
    for (int tries = 0; control && tries < 20; ++tries) {  // others may take the free one first
      const int number = ::ioctl(control.get(), LOOP_CTL_GET_FREE);
      if (number < 0) break;
      device_path_ = "/dev/loop" + std::to_string(number);
      device_ = Fd(::open(device_path_.c_str(), O_RDWR | O_CLOEXEC));
      if (!device_ || ::ioctl(device_.get(), LOOP_SET_FD, backing_.get()) != 0) continue;
      loop_info64 info{};
      info.lo_flags = LO_FLAGS_AUTOCLEAR;  // gone with its last user, however the test ends
      return ::ioctl(device_.get(), LOOP_SET_STATUS64, &info) == 0 ? "" : failed(device_path_);
    }
    return failed("a loop device");
  }

  std::filesystem::path folder_;
  Fd backing_;
  Fd device_;
  std::string device_path_;
  std::string trouble_;
};

std::vector<Tensor> create(Client& client, const std::string& name, std::uint64_t count) {
  std::vector<TensorSpec> specs;
  for (std::uint64_t i = 0; i < count; ++i) specs.push_back({.name = name + std::to_string(i), .bytes = kMiB});
  return client.create(specs).value();
}

void write(Client& client, const Tensor& tensor, std::uint64_t version) {
  const Result<Lease> lease = client.acquire(tensor, {.mode = Mode::kOverwrite});
  ASSERT_TRUE(lease.has_value()) << lease.error().message;
  fill(lease->writable_bytes(), tensor.handle(), version);
}

void expect_content(Client& client, const Tensor& tensor, std::uint64_t version) {
  const Result<Lease> lease = client.acquire(tensor);
  ASSERT_TRUE(lease.has_value()) << lease.error().message;
  EXPECT_EQ(first_difference(lease->bytes(), tensor.handle(), version), kMiB) << tensor.name();
}

void expect_lost(Client& client, const Tensor& tensor) {
  const Result<Lease> lease = client.acquire(tensor);
  ASSERT_FALSE(lease.has_value()) << tensor.name();
  EXPECT_EQ(lease.error().code, ErrorCode::kDataLoss) << lease.error().message;
  EXPECT_NE(lease.error().message.find(tensor.name()), std::string::npos) << lease.error().message;
}

void expect_no_room(Client& client, const Tensor& tensor) {
  const Result<void> out = client.swap_out({&tensor, 1});
  ASSERT_FALSE(out.has_value()) << tensor.name();
  EXPECT_EQ(out.error().code, ErrorCode::kResourceExhausted) << out.error().message;
  EXPECT_NE(out.error().message.find(tensor.name()), std::string::npos) << out.error().message;
}

TEST(Disk, ThatFillsUpCostsNoBytes) {
  const LoopDisk disk;
  if (!disk.trouble().empty()) GTEST_SKIP() << disk.trouble();
  const Terraced terraced({.block_mib = kDiskTierMib, .block_path = disk.file()});
  const LogOfFailure log(terraced);
  Client client = terraced.connect();
  const std::vector<Tensor> safe = create(client, "safe", kDiskTensors);
  const std::vector<Tensor> tensors = create(client, "t", kDiskTensors);
  for (const Tensor& tensor : safe) write(client, tensor, 1);
  ASSERT_TRUE(client.swap_out(safe).has_value());
  for (const Tensor& tensor : tensors) write(client, tensor, 1);
  ASSERT_NO_FATAL_FAILURE(disk.fill_up());
  for (const Tensor& tensor : tensors) expect_no_room(client, tensor);
  for (const Tensor& tensor : tensors) expect_content(client, tensor, 1);
  for (const Tensor& tensor : safe) expect_content(client, tensor, 1);  // the disk can still be read
  const nlohmann::json tier = block_tier(terraced);
  EXPECT_NE(tier["write_failure"], "") << tier;
  EXPECT_LE(count_of(tier, "retired_bytes"), kMiB) << "no capacity is lost by it: " << tier;
  Client other = terraced.connect();
  const Tensor fresh = create(other, "fresh", 1).front();
  write(other, fresh, 3);
  ASSERT_NO_FATAL_FAILURE(disk.make_room());
  EXPECT_TRUE(is_whole_again(terraced)) << block_tier(terraced);
  ASSERT_TRUE(client.swap_out(tensors).has_value());
  ASSERT_TRUE(other.swap_out({&fresh, 1}).has_value());
  for (const Tensor& tensor : tensors) expect_content(client, tensor, 1);
  expect_content(other, fresh, 3);
  figure(25, "a loop device that filled up refused " + std::to_string(kDiskTensors) +
                 " write-backs: " + std::to_string(count_of(tier, "io_errors")) +
                 " was tried, every source kept; with room it was whole again by itself");
}

TEST(Disk, ThatLosesWhatWasWrittenIsFoundOut) {
  const LoopDisk disk;
  if (!disk.trouble().empty()) GTEST_SKIP() << disk.trouble();
  const Terraced terraced({.block_mib = kDiskTierMib, .block_path = disk.file()});
  const LogOfFailure log(terraced);
  Client client = terraced.connect();
  const std::vector<Tensor> tensors = create(client, "t", kDiskTensors);
  const Tensor above = create(client, "above", 1).front();
  for (const Tensor& tensor : tensors) write(client, tensor, 1);
  write(client, above, 1);
  ASSERT_TRUE(client.swap_out(tensors).has_value());
  ASSERT_NO_FATAL_FAILURE(disk.lose_everything());
  for (const Tensor& tensor : tensors) expect_lost(client, tensor);
  expect_content(client, above, 1);
  for (const Tensor& tensor : tensors) write(client, tensor, 2);
  ASSERT_TRUE(client.swap_out(tensors).has_value());
  for (const Tensor& tensor : tensors) expect_content(client, tensor, 2);
  const nlohmann::json tier = block_tier(terraced);
  EXPECT_EQ(count_of(tier, "checksum_failures"), kDiskTensors) << tier;
  EXPECT_EQ(count_of(tier, "retired_bytes"), 0u) << "the disk takes and gives again: " << tier;
  EXPECT_TRUE(terraced.serves_on());
  figure(26, std::to_string(kDiskTensors) + " of " + std::to_string(kDiskTensors) +
                 " tensors that a loop device lost reported DATA_LOSS; rewritten, they were right");
}

TEST(Disk, WhereFilesMayNotGrowAsFarCostsNoBytes) {
  const Terraced terraced({.block_mib = kDiskTierMib});
  const LogOfFailure log(terraced);
  Client client = terraced.connect();
  const std::vector<Tensor> tensors = create(client, "t", kDiskTensors);
  for (const Tensor& tensor : tensors) write(client, tensor, 1);
  const rlimit none{.rlim_cur = 0, .rlim_max = RLIM_INFINITY};
  ASSERT_EQ(::prlimit(terraced.pid(), RLIMIT_FSIZE, &none, nullptr), 0);
  for (const Tensor& tensor : tensors) expect_no_room(client, tensor);
  for (const Tensor& tensor : tensors) expect_content(client, tensor, 1);
  EXPECT_NE(block_tier(terraced)["write_failure"], "");
  const rlimit lifted{.rlim_cur = RLIM_INFINITY, .rlim_max = RLIM_INFINITY};
  ASSERT_EQ(::prlimit(terraced.pid(), RLIMIT_FSIZE, &lifted, nullptr), 0);
  EXPECT_TRUE(is_whole_again(terraced)) << block_tier(terraced);
  ASSERT_TRUE(client.swap_out(tensors).has_value());
  for (const Tensor& tensor : tensors) expect_content(client, tensor, 1);
  EXPECT_TRUE(terraced.serves_on());
}

TEST(Disk, WhoseFileIsCutShortSaysSo) {
  const Terraced terraced({.block_mib = kDiskTierMib});
  const LogOfFailure log(terraced);
  Client client = terraced.connect();
  const std::vector<Tensor> tensors = create(client, "t", kDiskTensors);
  for (const Tensor& tensor : tensors) write(client, tensor, 1);
  ASSERT_TRUE(client.swap_out(tensors).has_value());
  ASSERT_EQ(::truncate(terraced.block_file().c_str(), 0), 0);
  for (const Tensor& tensor : tensors) expect_lost(client, tensor);
  for (const Tensor& tensor : tensors) write(client, tensor, 2);
  ASSERT_TRUE(client.swap_out(tensors).has_value());
  for (const Tensor& tensor : tensors) expect_content(client, tensor, 2);
  EXPECT_TRUE(terraced.serves_on());
}

}  // namespace
}  // namespace terrace::faults
