// SPDX-License-Identifier: Apache-2.0
// Shows how the library pins host memory, on the fake driver: several pieces at once, each once; one that the driver
// refuses is not taken for pinned and keeps no other from it; what is being pinned is let go of when that is over; and
// leases have a segment only when it was pinned.
#include "host_pins.h"

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpu/on_fake.h"
#include "in_parallel.h"
#include "place_range.h"
#include "shm/layout.h"

namespace terrace::client {
namespace {

using fake_cuda::Call;
using fake_cuda::count;
using fake_cuda::set_fault;

constexpr std::uint64_t kPiece = PlaceRange::kGranuleBytes;

bool eventually(const std::function<bool()>& condition) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > limit) return false;
    std::this_thread::yield();
  }
  return true;
}

// Does something on a thread of its own, which by and by waits or is done.
class Beside {
 public:
  explicit Beside(std::function<void()> work)
      : thread_([this, work = std::move(work)] {
          id_ = ::gettid();
          work();
          done_ = true;
        }) {}
  bool done() const { return done_; }
  bool waits() const {
    std::ifstream stat("/proc/self/task/" + std::to_string(id_) + "/stat");
    std::string text;
    return std::getline(stat, text) && text.find(") S ") != std::string::npos;
  }

 private:
  std::atomic<pid_t> id_ = 0;
  std::atomic<bool> done_ = false;
  std::jthread thread_;
};

// How many pieces the library pins at once, if there are `pieces`.
std::size_t at_once(std::size_t pieces) {
  cpu_set_t allowed{};
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) std::abort();
  return std::min({pieces, static_cast<std::size_t>(CPU_COUNT(&allowed)), kThreadsAtOnce});
}

class HostPinsTest : public fake_cuda::OnFake {
 protected:
  HostPinsTest() {
    ::setenv("TERRACE_CUDA_LIBRARY", FAKE_CUDA, 1);
    cuda::Context made = nullptr;
    if (!api().primary_retain(&made, 0)) std::abort();
    gpu = Gpu::in_use();
    if (gpu == nullptr) std::abort();
    void* const found = ::mmap(nullptr, 8 * kPiece, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (found == MAP_FAILED) std::abort();
    memory = static_cast<std::byte*>(found);
  }
  ~HostPinsTest() override {
    ::munmap(memory, 8 * kPiece);
    gpu.reset();
    EXPECT_TRUE(api().primary_release(0));
  }
  std::uint64_t registered() const { return control.registered_bytes.load() - before_; }

  std::shared_ptr<Gpu> gpu;
  std::byte* memory = nullptr;

 private:
  const std::uint64_t before_ = control.registered_bytes.load();
};

TEST_F(HostPinsTest, SeveralThreadsPinAtOnceAndEachPieceOnce) {
  HostPins pins;
  const auto asked = count(control, Call::kHostRegister);
  control.hold_registering = 1;
  {
    std::vector<std::jthread> threads;
    for (const std::uint64_t piece : {0U, 1U, 2U, 1U, 2U})
      threads.emplace_back([&, piece] { pins.pin(gpu, memory + piece * kPiece, kPiece, false); });
    EXPECT_TRUE(eventually([&] { return control.registering == 3; }));
    EXPECT_EQ(pins.pinned_bytes(), 0U);
    control.hold_registering = 0;
  }
  EXPECT_EQ(count(control, Call::kHostRegister) - asked, 3U);
  EXPECT_EQ(pins.pinned_bytes(), 3 * kPiece);
  EXPECT_EQ(registered(), 3 * kPiece);
  pins.remove(memory, 8 * kPiece);
  EXPECT_EQ(pins.pinned_bytes(), 0U);
  EXPECT_EQ(registered(), 0U);
}

TEST_F(HostPinsTest, WhatIsBeingPinnedIsLetGoOfWhenThatIsOver) {
  HostPins pins;
  control.hold_registering = 1;
  {
    const Beside pinner([&] { pins.pin(gpu, memory, 2 * kPiece, false); });
    EXPECT_TRUE(eventually([&] { return control.registering == 1; }));
    const Beside remover([&] { pins.remove(memory + kPiece, kPiece); });
    const Beside other([&] { pins.pin(gpu, memory + kPiece, kPiece, false); });  // of a part
    for (const Beside* each : {&remover, &other}) {
      EXPECT_TRUE(eventually([&] { return each->waits() || each->done(); }));
      EXPECT_FALSE(each->done());
    }
    EXPECT_EQ(control.registering, 1U);
    control.hold_registering = 0;
  }
  pins.remove(memory + kPiece, kPiece);
  EXPECT_EQ(pins.pinned_bytes(), 0U);
  EXPECT_EQ(registered(), 0U);
}

TEST_F(HostPinsTest, APieceThatTheDriverRefusesIsNotTakenForPinned) {
  HostPins pins;
  set_fault(control, Call::kHostRegister, cuda::kOutOfMemory, 1, 1);
  in_parallel(3, [&](std::size_t piece) { pins.pin(gpu, memory + piece * kPiece, kPiece, false); });
  EXPECT_EQ(pins.pinned_bytes(), 2 * kPiece);
  EXPECT_EQ(registered(), 2 * kPiece);
  const auto asked = count(control, Call::kHostRegister);
  for (const std::uint64_t piece : {0U, 1U, 2U}) pins.pin(gpu, memory + piece * kPiece, kPiece, false);
  EXPECT_EQ(count(control, Call::kHostRegister), asked) << "it was asked for again";
  pins.remove(memory, 3 * kPiece);
  EXPECT_EQ(registered(), 0U);
}

// Of the CPU's memory beside a GPU, each segment in both views.
class PinnedRange : public HostPinsTest {
 protected:
  PinnedRange() {
    auto made = PlaceRange::reserve({.place = shm::kPlaceHost, .range_bytes = 8 * kPiece},
                                    {.read_only = false, .beside_gpu = true});
    if (!made) std::abort();
    range = std::move(*made);
  }
  void map(std::uint64_t segment) {
    const int fd = ::memfd_create("segment", MFD_CLOEXEC);
    ASSERT_GE(fd, 0);
    ASSERT_EQ(::ftruncate(fd, kPiece), 0);
    EXPECT_TRUE(range->map(segment * kPiece, kPiece, fd));
    ::close(fd);
  }
  bool mapped(std::uint64_t segment) const { return range->mapped(segment * kPiece, kPiece); }

  std::unique_ptr<PlaceRange> range;
};

TEST_F(PinnedRange, WhatIsMappedBeforeIsPinnedTogether) {
  for (const std::uint64_t segment : {0U, 1U, 2U}) map(segment);
  EXPECT_TRUE(mapped(2)) << "nothing is pinned yet";
  control.hold_registering = 1;
  std::jthread reader([&] { range->pin(gpu); });
  EXPECT_TRUE(eventually([&] { return control.registering == at_once(6); }));
  control.hold_registering = 0;
  reader.join();
  EXPECT_EQ(range->pinned_bytes(), 3 * kPiece);
  EXPECT_EQ(registered(), 6 * kPiece);
  range.reset();
  EXPECT_EQ(registered(), 0U);
}

TEST_F(PinnedRange, SegmentsThatComeArePinnedTogetherBeforeALeaseHasThem) {
  range->pin(gpu);
  for (const std::uint64_t segment : {0U, 1U, 2U, 3U}) map(segment);
  EXPECT_EQ(range->unfinished(), 4U);
  ASSERT_TRUE(range->unmap(kPiece, kPiece));  // the daemon may take it back at once
  set_fault(control, Call::kHostRegister, cuda::kOutOfMemory);
  control.hold_registering = 1;
  std::jthread reader([&] { range->finish(); });
  EXPECT_TRUE(eventually([&] { return control.registering >= at_once(5); }));
  for (const std::uint64_t segment : {0U, 1U, 2U, 3U}) EXPECT_FALSE(mapped(segment)) << segment;
  control.hold_registering = 0;
  reader.join();
  EXPECT_EQ(range->unfinished(), 0U);
  EXPECT_EQ(registered(), 5 * kPiece) << "three in two views, but for the one that was refused";
  for (const std::uint64_t segment : {0U, 2U, 3U}) EXPECT_TRUE(mapped(segment)) << segment;
  EXPECT_FALSE(mapped(1));
  EXPECT_TRUE(range->unmap(2 * kPiece, kPiece));
  EXPECT_LE(registered(), 4 * kPiece);
  range.reset();
  EXPECT_EQ(registered(), 0U);
}

}  // namespace
}  // namespace terrace::client
