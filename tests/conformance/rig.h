// SPDX-License-Identifier: Apache-2.0
// A device, a memory and a block tier with a mover over them, and the space of one session: what every tier's tests
// need.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "bench/contents.h"
#include "conformance/rig_device.h"
#include "mover/mover.h"
#include "tier/block/block_file.h"
#include "tier/memory/memory_tier.h"

namespace terrace::conformance {

inline constexpr TierId kDevice{0};
inline constexpr TierId kMemory{1};
inline constexpr TierId kBlock{2};
inline constexpr SessionId kSession{7};
inline constexpr std::uint64_t kSegmentBytes = 8 * kMiB;

// A folder of this test alone, gone when it ends. It lies beside the build: O_DIRECT is not everywhere.
class Folder {
 public:
  Folder() {
    const char* elsewhere = std::getenv("TERRACE_TEST_FOLDER");  // on a machine that was not built on
    const std::string parent = elsewhere != nullptr ? elsewhere : TERRACE_TEST_FOLDER;
    std::filesystem::create_directories(parent);
    std::string name = parent + "/conformance-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) ADD_FAILURE() << "mkdtemp " << name << ": " << std::strerror(errno);
    path_ = name;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string file(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

// The value, or a failed test and the end of it.
template <typename T>
T must(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message);
  return std::move(*result);
}
inline void must(const Result<void>& result) {
  if (!result) throw std::runtime_error(result.error().message);
}

class Rig {
 public:
  struct Options {
    std::uint64_t mapped_bytes = 64 * kMiB;  // capacity of the device, and of memory
    std::uint64_t block_bytes = 64 * kMiB;
    std::size_t block_files = 1;
    unsigned copiers = 2;
    unsigned pinners = 2;
    mover::Mover::Options mover{};
  };
  Rig() : Rig(Options{}) {}
  explicit Rig(const Options& options)
      : rig_device(make_rig_device(options.mapped_bytes)),
        device(rig_device->tier()),
        memory({.capacity_bytes = options.mapped_bytes, .numa_node = {}, .huge_pages = tier::HugePages::kAuto}) {
    tier::BlockOptions block_options{.paths = {}, .capacity_bytes = options.block_bytes};
    for (std::size_t index = 0; index < options.block_files; ++index) {
      block_options.paths.push_back(folder.file("block-" + std::to_string(index)));
    }
    block = must(tier::BlockFile::open(block_options));
    ring = must(mover::Ring::create({}));
    workers =
        must(mover::Workers::create({.copiers = options.copiers, .node_processors = {}, .pinners = options.pinners}));
    mover = must(mover::Mover::create(*ring, *workers, {.mapped = {&device, &memory, nullptr}, .block = block.get()},
                                      options.mover));
  }

  // Runs until nothing is in flight; what became of the transfers, by id.
  std::map<TransferId, mover::TransferDone> settle() {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (mover->in_flight() > 0) {
      must(ring->run_once(std::chrono::milliseconds(100)));
      if (std::chrono::steady_clock::now() > limit) throw std::runtime_error("transfers do not end");
    }
    std::map<TransferId, mover::TransferDone> done;
    for (auto& each : mover->take_transfers()) {
      EXPECT_TRUE(done.emplace(each.id, each).second) << "two outcomes of one transfer";
    }
    return done;
  }
  mover::TransferDone run(mover::Transfer transfer) {
    transfer.id = next_id();
    mover->start(transfer);
    auto done = settle();
    EXPECT_EQ(done.size(), 1U);
    return done.at(transfer.id);
  }
  Result<void> order(mover::SegmentOrder::Kind kind, TierId tier, tier::Extent extent) {
    mover->start(mover::SegmentOrder{.kind = kind, .session = kSession, .tier = tier, .extent = extent});
    settle();
    auto done = mover->take_segments();
    EXPECT_EQ(done.size(), 1U);
    return done.at(0).result;
  }

  // Space for `bytes`, never given twice; mapped tiers grow by segments as it is needed.
  tier::Location place(TierId tier, std::uint64_t bytes) {
    const std::uint64_t rounded = std::max(align_up(bytes, kPageBytes), kPageBytes);
    tier::Location location{.tier = tier, .session = kSession, .pieces = tier::Pieces({used_[tier], rounded})};
    used_[tier] += rounded;
    while (tier != kBlock && grown_[tier] < used_[tier]) {
      must(order(mover::SegmentOrder::Kind::kAdd, tier, {grown_[tier], kSegmentBytes}));
      grown_[tier] += kSegmentBytes;
    }
    location.first_checksum = next_checksum_;
    if (tier == kBlock) next_checksum_ += tier::chunk_count(bytes);
    return location;
  }
  tier::MappedTier& mapped(TierId tier) { return tier == kDevice ? device : memory; }
  // Of memory, where it lies; of a device, see content() and put().
  std::span<std::byte> bytes(const tier::Location& location, std::uint64_t count) {
    EXPECT_EQ(location.tier, kMemory);
    return {memory.address(kSession, location.pieces[0].offset), count};
  }
  std::vector<std::byte> content(const tier::Location& location, std::uint64_t count) {
    std::vector<std::byte> found(count);
    const std::byte* from = mapped(location.tier).address(kSession, location.pieces[0].offset);
    if (location.tier == kDevice) {
      rig_device->read(from, found);
    } else {
      std::memcpy(found.data(), from, count);
    }
    return found;
  }
  void put(const tier::Location& location, std::span<const std::byte> content) {
    std::byte* to = mapped(location.tier).address(kSession, location.pieces[0].offset);
    if (location.tier == kDevice) {
      rig_device->write(to, content);
    } else {
      std::memcpy(to, content.data(), content.size());
    }
  }
  // Random bytes, put there.
  std::vector<std::byte> put_random(const tier::Location& location, std::uint64_t count) {
    std::vector<std::byte> made(count);
    fill(made);
    put(location, made);
    return made;
  }
  tier::Location segment(TierId tier) const {
    return {.tier = tier, .session = kSession, .pieces = tier::Pieces({0, kSegmentBytes})};
  }
  // Memory that holds `count` random bytes.
  tier::Location random_source(std::uint64_t count) {
    const tier::Location location = place(kMemory, count);
    fill(bytes(location, count));
    return location;
  }
  void fill(std::span<std::byte> target) { bench::fill(target, random(), 0); }
  TransferId next_id() { return TransferId{++last_id_}; }

  Folder folder;
  std::unique_ptr<RigDevice> rig_device;
  tier::MappedTier& device;
  tier::MemoryTier memory;
  std::unique_ptr<tier::BlockFile> block;
  std::unique_ptr<mover::Ring> ring;
  std::unique_ptr<mover::Workers> workers;
  std::unique_ptr<mover::Mover> mover;
  std::mt19937_64 random{20261121};

 private:
  std::map<TierId, std::uint64_t> used_;
  std::map<TierId, std::uint64_t> grown_;
  std::uint64_t next_checksum_ = 0;
  std::uint64_t last_id_ = 0;
};

inline bool all_zeros(std::span<const std::byte> bytes) {
  // Each byte is its neighbour, and the first is zero: at the speed of memory beside a sanitizer too.
  return bytes.empty() ||
         (bytes[0] == std::byte{0} && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
}

inline bool equal(std::span<const std::byte> left, std::span<const std::byte> right) {
  return left.size() == right.size() && std::memcmp(left.data(), right.data(), left.size()) == 0;
}

}  // namespace terrace::conformance
