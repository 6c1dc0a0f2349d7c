// SPDX-License-Identifier: Apache-2.0
// Shows that a client which cuts, punches or scribbles on what it shares with the daemon harms its own bytes alone: no
// SIGBUS, no region of the disk given up, and nobody else notices.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <random>
#include <thread>

#include "e2e/raw_session.h"
#include "faults/cases.h"
#include "shm/word.h"

namespace terrace::faults {
namespace {

using namespace std::chrono_literals;
using e2e::eventually;
using e2e::fill;
using e2e::first_difference;
using e2e::kMiB;
using e2e::RawSession;
using e2e::Terraced;

constexpr std::uint64_t kTensors = 2;
constexpr std::uint64_t kSegmentBytes = 2 * kMiB;

// A trainer whose tensors travel through all tiers on a thread of its own, every byte checked.
class Bystander {
 public:
  explicit Bystander(const Terraced& terraced) : client_(terraced.connect({.label = "bystander"})) {
    tensor_ = client_.create({.name = "mine", .bytes = kMiB}).value();
    thread_ = std::jthread([this](const std::stop_token& stop) {
      for (std::uint64_t version = 1; !stop.stop_requested() && !::testing::Test::HasFailure(); ++version)
        trip(version);
    });
  }
  std::uint64_t trips() const { return trips_; }

 private:
  void trip(std::uint64_t version) {
    {
      const Result<Lease> lease = client_.acquire(tensor_, {.place = Place::device(0), .mode = Mode::kOverwrite});
      ASSERT_TRUE(lease.has_value()) << lease.error().message;
      fill(lease->writable_bytes(), 1, version);
    }
    const Result<void> out = client_.swap_out({&tensor_, 1});
    ASSERT_TRUE(out.has_value()) << out.error().message;
    const Result<Lease> read = client_.acquire(tensor_);
    ASSERT_TRUE(read.has_value()) << read.error().message;
    ASSERT_EQ(first_difference(read->bytes(), 1, version), kMiB);
    ++trips_;
  }

  Client client_;
  Tensor tensor_;
  std::atomic<std::uint64_t> trips_ = 0;
  std::jthread thread_;
};

// A session past the library, with tensors of a mebibyte and its host segments mapped for good.
class Attacker {
 public:
  explicit Attacker(const Terraced& terraced) : raw_(terraced.data_socket()) {
    for (std::uint64_t i = 0; i < kTensors; ++i)
      handles_.push_back(raw_.create(e2e::record_named(("t" + std::to_string(i)).c_str(), kMiB)).value().front());
  }
  Attacker(const Attacker&) = delete;
  Attacker& operator=(const Attacker&) = delete;
  ~Attacker() {
    if (bytes_ != MAP_FAILED) ::munmap(bytes_, kSegmentBytes);
  }

  // Leases all in host memory, in `mode`, and releases them.
  Result<void> touch(shm::Mode mode) {
    const std::vector<shm::Mode> modes(handles_.size(), mode);
    const auto granted = raw_.ask({.operation = shm::Operation::kAcquire,
                                   .place = shm::kPlaceHost,
                                   .timeout = 30s,
                                   .handles = handles_,
                                   .modes = modes});
    if (!granted) return std::unexpected(granted.error());
    for (const std::uint64_t handle : handles_) {
      const auto slot = static_cast<std::uint32_t>(handle);
      const auto incarnation = static_cast<std::uint32_t>(handle >> 32);
      EXPECT_EQ(shm::release(raw_.region().table[slot].word, incarnation, mode).outcome, shm::Outcome::kDone);
    }
    return {};
  }
  Result<void> move(std::uint32_t place) {
    const auto moved =
        raw_.ask({.operation = shm::Operation::kMove, .place = place, .timeout = 30s, .handles = handles_});
    if (!moved) return std::unexpected(moved.error());
    return {};
  }
  // Takes the first segment, which the daemon passes with the first lease.
  void take_segment() {
    Result<RawSession::Segment> segment = raw_.segment();
    ASSERT_TRUE(segment.has_value()) << segment.error().message;
    memory_ = std::move(segment->memory);
    ASSERT_GE(segment->message.bytes, kSegmentBytes);
    bytes_ = ::mmap(nullptr, kSegmentBytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory_.get(), 0);
    ASSERT_NE(bytes_, MAP_FAILED);
  }
  int segment() const { return memory_.get(); }
  std::span<std::byte> bytes() const { return {static_cast<std::byte*>(bytes_), kSegmentBytes}; }
  const RawSession& raw() const { return raw_; }

 private:
  RawSession raw_;
  std::vector<std::uint64_t> handles_;
  client::Descriptor memory_;
  void* bytes_ = MAP_FAILED;
};

bool punch(int descriptor, std::uint64_t offset, std::uint64_t bytes) {
  return ::fallocate(descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                     static_cast<off_t>(bytes)) == 0;
}

void expect_cannot_be_cut(int descriptor) {
  EXPECT_EQ(::ftruncate(descriptor, 0), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(::ftruncate(descriptor, off_t{1} << 30), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(::fcntl(descriptor, F_ADD_SEALS, F_SEAL_WRITE), -1) << "nor sealed against the daemon";
}

TEST(SharedMemory, CannotBeCutAndMayBePunched) {
  const Terraced terraced;
  const LogOfFailure log(terraced);
  {
    const Bystander bystander(terraced);
    Attacker attacker(terraced);
    ASSERT_TRUE(attacker.touch(shm::Mode::kOverwrite).has_value());
    ASSERT_NO_FATAL_FAILURE(attacker.take_segment());
    expect_cannot_be_cut(attacker.segment());
    expect_cannot_be_cut(attacker.raw().region_descriptor());
    const std::uint64_t rounds = times(20, 2000);
    for (std::uint64_t round = 0; round < rounds; ++round) {
      std::ranges::fill(attacker.bytes(), std::byte{0x5A});
      ASSERT_TRUE(punch(attacker.segment(), 0, kSegmentBytes));
      ASSERT_TRUE(attacker.move(shm::kPlaceBlock).has_value());
      ASSERT_TRUE(attacker.touch(shm::Mode::kWrite).has_value());
      EXPECT_EQ(attacker.bytes()[kMiB / 2], std::byte{0}) << "its own bytes are what it made of them";
    }
    const std::uint64_t trips = bystander.trips();
    EXPECT_TRUE(eventually([&] { return bystander.trips() > trips + 2 || ::testing::Test::HasFailure(); }));
    ASSERT_TRUE(punch(attacker.raw().region_descriptor(), 0, attacker.raw().region().arena.size()));
    attacker.raw().ring();
    const std::uint64_t later = bystander.trips();
    EXPECT_TRUE(eventually([&] { return bystander.trips() > later + 2 || ::testing::Test::HasFailure(); }));
    figure(11, "truncation refused; " + std::to_string(rounds) + " rounds punched, " +
                   std::to_string(bystander.trips()) + " trips of another trainer right");
  }
  EXPECT_TRUE(terraced.serves_on());
  EXPECT_TRUE(eventually([&] { return used_bytes(terraced.status()) == 0; }));
}

TEST(SharedMemory, ScribbledOnDuringTransfersIsItsOwnersLossAlone) {
  const unsigned seed = std::random_device()();
  std::printf("seed %u\n", seed);
  const Terraced terraced;
  const LogOfFailure log(terraced);
  const Bystander bystander(terraced);
  Attacker attacker(terraced);
  ASSERT_TRUE(attacker.touch(shm::Mode::kOverwrite).has_value());
  ASSERT_NO_FATAL_FAILURE(attacker.take_segment());
  std::jthread scribbler([&attacker, random = std::mt19937_64(seed)](const std::stop_token& stop) mutable {
    while (!stop.stop_requested()) {
      attacker.bytes()[random() % kSegmentBytes] = static_cast<std::byte>(random());
      if (random() % 4096 == 0) punch(attacker.segment(), random() % 512 * 4096, 4096);
    }
  });
  std::uint64_t lost = 0;
  const std::uint64_t rounds = times(100, 10'000);
  for (std::uint64_t round = 0; round < rounds && !HasFailure(); ++round) {
    const Result<void> out = attacker.move(shm::kPlaceBlock);
    ASSERT_TRUE(out.has_value()) << out.error().message;
    const Result<void> back = attacker.touch(shm::Mode::kRead);
    if (!back) {
      ASSERT_EQ(back.error().code, ErrorCode::kDataLoss) << back.error().message;
      ++lost;
    }
    const Result<void> again = attacker.touch(shm::Mode::kOverwrite);
    ASSERT_TRUE(again.has_value()) << again.error().message;
  }
  scribbler.request_stop();
  EXPECT_GT(lost, 0u) << "no scribble fell between the checksum and the write";
  const std::uint64_t trips = bystander.trips();
  EXPECT_TRUE(eventually([&] { return bystander.trips() > trips + 2 || HasFailure(); }));
  const nlohmann::json status = terraced.status();
  for (const auto& tier : status["tiers"]) {
    EXPECT_EQ(tier["retired_bytes"], 0) << tier;
    EXPECT_EQ(tier["io_errors"], 0) << tier;
  }
  figure(27, std::to_string(rounds) + " swaps out and in under scribbles and punches: " + std::to_string(lost) +
                 " DATA_LOSS, 0 bytes retired; " + std::to_string(bystander.trips()) +
                 " trips of another trainer right");
}

// What two processes count together.
using Counter = std::atomic<std::uint64_t>;
Counter& shared_counter() {
  void* page = ::mmap(nullptr, sizeof(Counter), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  TERRACE_CHECK(page != MAP_FAILED);
  return *new (page) Counter(0);
}

// As fast as it can, until it is killed: rings for nothing, fills its logs, and asks for what is answered at once.
int flood(const std::string& socket, const Beacon& ready, Counter& answered) {
  constexpr int kAskers = 8;
  RawSession raw(socket);
  std::vector<std::jthread> threads;
  for (int i = 0; i < kAskers; ++i)
    threads.emplace_back([&] {
      while (raw.ask({.operation = shm::Operation::kMarkStep, .timeout = 30s})) ++answered;
    });
  threads.emplace_back([&] {
    while (true) raw.ring();
  });
  while (answered == 0) std::this_thread::yield();
  if (!ready.say('x')) return 1;
  for (std::uint32_t log = 0;; log = (log + 1) % shm::kLogCount)
    raw.region().log_index(log).tail.fetch_add(shm::kLogEntries, std::memory_order_release);
}

TEST(Flood, OfDoorbellsLogsAndRequestsLeavesOthersTheirShare) {
  const Terraced terraced;
  const LogOfFailure log(terraced);
  const Beacon ready;
  Counter& flooded = shared_counter();
  e2e::Process flooder([&] { return flood(terraced.data_socket(), ready, flooded); });
  ASSERT_EQ(ready.hear(), 'x');
  Client client = terraced.connect({.label = "bystander"});
  std::vector<std::uint64_t> beside;  // each of our requests: how many of theirs were answered
  const std::uint64_t requests = times(300, 100'000);
  for (std::uint64_t i = 0; i < requests; ++i) {
    const std::uint64_t before = flooded;
    const Result<void> marked = client.mark_step();
    ASSERT_TRUE(marked.has_value()) << marked.error().message;
    beside.push_back(flooded - before);
  }
  EXPECT_TRUE(eventually([&] { return flooded > requests; })) << "it is a flood";
  std::ranges::sort(beside);
  const std::uint64_t median = beside[beside.size() / 2];
  EXPECT_LE(median, shm::kRingEntries) << "one ring of the others' at a time, and then ours";
  flooder.kill();
  flooder.wait();
  EXPECT_TRUE(terraced.serves_on());
  figure(16, std::to_string(requests) +
                 " requests beside a flood of doorbells, logs and requests: in the time of one, " +
                 std::to_string(median) + " of the flood's were answered (median), " + std::to_string(beside.back()) +
                 " at most");
}

}  // namespace
}  // namespace terrace::faults
