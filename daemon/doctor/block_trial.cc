// SPDX-License-Identifier: Apache-2.0
#include "doctor/block_trial.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>

#include "base/nameless_file.h"
#include "base/random.h"

namespace terrace::doctor {
namespace {

constexpr std::uint64_t kSeed = 1;

class TrialBlock {
 public:
  TrialBlock() : memory_(std::aligned_alloc(kPageBytes, kTrialBytes), &std::free) {
    std::memset(memory_.get(), 0, kTrialBytes);
  }
  std::span<std::byte> bytes() { return {static_cast<std::byte*>(memory_.get()), kTrialBytes}; }

 private:
  std::unique_ptr<void, decltype(&std::free)> memory_;
};

std::unexpected<Error> trial_failed(const char* step, int error) {
  return fail(ErrorCode::kFailedPrecondition, fmt::format("{} failed: {}", step, std::strerror(error)), error);
}

// pread or pwrite of all of it; 0 or errno.
template <typename Move>
int move_all(Move move) {
  for (std::size_t done = 0; done < kTrialBytes;) {
    const ssize_t moved = move(done);
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) return moved == 0 ? EIO : errno;
    done += static_cast<std::size_t>(moved);
  }
  return 0;
}

}  // namespace

Result<void> try_block(int fd) {
  if (::fallocate(fd, 0, 0, static_cast<off_t>(kTrialBytes)) != 0)
    return trial_failed("reserving room (fallocate)", errno);
  TrialBlock written;
  TrialBlock back;
  Random random(kSeed);
  for (std::byte& byte : written.bytes()) byte = static_cast<std::byte>(random.below(256));
  const auto put = [&](std::size_t done) {
    return ::pwrite(fd, written.bytes().data() + done, kTrialBytes - done, static_cast<off_t>(done));
  };
  const auto get = [&](std::size_t done) {
    return ::pread(fd, back.bytes().data() + done, kTrialBytes - done, static_cast<off_t>(done));
  };
  if (const int error = move_all(put); error != 0) return trial_failed("writing with O_DIRECT", error);
  if (::fdatasync(fd) != 0) return trial_failed("having the drive keep what was written (fdatasync)", errno);
  if (const int error = move_all(get); error != 0) return trial_failed("reading with O_DIRECT", error);
  if (std::memcmp(written.bytes().data(), back.bytes().data(), kTrialBytes) == 0) return {};
  return fail(ErrorCode::kDataLoss,
              "other bytes came back than were written: the drive does not keep what it is given");
}

Result<void> try_block(const std::string& folder) {
  const auto file = nameless_file(folder, O_DIRECT);
  if (!file) return trial_failed("opening a file with O_DIRECT", file.error());
  return try_block(file->get());
}

}  // namespace terrace::doctor
