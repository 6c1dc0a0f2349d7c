// SPDX-License-Identifier: Apache-2.0
// A disk that fails as a whole for a time: full, read-only, gone, or failing wherever it is written. Nobody loses a
// byte by it, and nothing of its capacity once it works again.
#include <fmt/format.h>

#include <array>
#include <cerrno>

#include "sim/world.h"

namespace terrace::sim {

using namespace engine;

namespace {

constexpr std::uint64_t kStream = 0x6469'736b;  // of its own, so that nothing else is drawn otherwise
constexpr std::uint64_t kEventsBetween = 3'000;
constexpr std::uint64_t kFailsMax = 400;  // several of an engine's pauses between tries

struct DiskFault {
  const char* name;
  int error;
  bool reads_too;
};
constexpr std::array kDiskFaults = {DiskFault{"is full", ENOSPC, false}, DiskFault{"is read-only", EROFS, false},
                                    DiskFault{"is gone", ENODEV, true}, DiskFault{"fails every write", EIO, false},
                                    DiskFault{"fails everywhere", EIO, true}};

}  // namespace

void World::break_disk(std::uint64_t number) {
  if (!faults_ || !has_block_) return;
  Random random(options_.seed ^ kStream, number);
  if (!random.one_in(kEventsBetween)) return;
  disk_fault_ = random.below(kDiskFaults.size());
  disk_fails_until_ = node_.now + Duration(random.below(kFailsMax));
  say(fmt::format("the disk {}", kDiskFaults[disk_fault_].name));
  ++counts_.faults;
}

// Whether the transfer at this place failed by it.
bool World::fails_by_disk(std::size_t at) {
  const mover::Transfer& transfer = node_.transfers[at];
  const DiskFault& fault = kDiskFaults[disk_fault_];
  const bool writes = transfer.link.kind == mover::LinkKind::kBlockWrite;
  const bool reads = transfer.link.kind == mover::LinkKind::kBlockRead;
  if (node_.now >= disk_fails_until_ || !(writes || (reads && fault.reads_too))) return false;
  const bool loses = reads && fault.error == EIO;  // the first ones, before it is known to fail as a whole
  if (loses) harm(transfer.tensor);
  const ErrorCode code = loses                   ? ErrorCode::kDataLoss
                         : fault.error == ENOSPC ? ErrorCode::kResourceExhausted
                                                 : ErrorCode::kInternal;
  say(fmt::format("transfer {} of tensor number {} fails: the disk {}", static_cast<std::uint64_t>(transfer.id),
                  transfer.tensor, fault.name));
  node_.fail_transfer(at, Error{code, fmt::format("the disk {}", fault.name), fault.error},
                      writes ? transfer.to.tier : transfer.from.tier, [this] { return random_.one_in(2); });
  return true;
}

// It works again. Then it is written again, and what was out of use is in use, without anybody's help.
void World::mend_disk() {
  constexpr int kLooksMax = 100'000;
  disk_fails_until_ = {};
  const auto is_whole = [this] {
    const TierStatus block = node_.status().tiers.back();
    return block.write_failure.empty() && block.retired_bytes == 0;
  };
  for (int looks = 0; has_block_ && looks < kLooksMax && !is_whole(); ++looks) {
    if (node_.engine->next_deadline() != kNever) node_.advance(node_.engine->next_deadline());
    node_.settle();
    take_replies();
  }
  require(!has_block_ || is_whole(), "a disk that works again is written again, and all of it");
}

}  // namespace terrace::sim
