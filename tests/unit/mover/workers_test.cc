// SPDX-License-Identifier: Apache-2.0
// Shows that the workers run every job once and tell the reactor, that the slow lane keeps its order and delays no
// copy, that memory is pinned by several at once where it lies, and that a pool stops with work queued.
#include "mover/workers.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace terrace::mover {
namespace {

class Count final : public Job {
 public:
  void run() override {
    ran.fetch_add(1);
    if (waits_for != nullptr) waits_for->get_future().wait();
  }
  void done() override {
    ++ended;
    if (order != nullptr) order->push_back(this);
  }
  std::atomic<int> ran = 0;
  int ended = 0;
  std::promise<void>* waits_for = nullptr;
  std::vector<Count*>* order = nullptr;
};

std::unique_ptr<Workers> pool(unsigned copiers) {
  auto made = Workers::create({.copiers = copiers, .node_processors = {}});
  EXPECT_TRUE(made) << made.error().message;
  return std::move(*made);
}

// Collects until `jobs` have ended, as the reactor does: waiting on the descriptor.
void collect(Workers& workers, std::size_t jobs) {
  while (jobs > 0) {
    pollfd bell{.fd = workers.descriptor(), .events = POLLIN, .revents = 0};
    ASSERT_EQ(poll(&bell, 1, 60'000), 1) << "no job ends";
    const std::size_t collected = workers.collect();
    ASSERT_LE(collected, jobs);
    jobs -= collected;
  }
}

TEST(WorkersTest, RunEveryJobOnce) {
  auto workers = pool(3);
  std::vector<Count> jobs(1000);
  for (int round = 1; round <= 2; ++round) {
    for (Count& job : jobs) workers->submit(job, Workers::Lane::kCopy);
    collect(*workers, jobs.size());
    for (const Count& job : jobs) {
      EXPECT_EQ(job.ran, round);
      EXPECT_EQ(job.ended, round);
    }
  }
  EXPECT_EQ(workers->collect(), 0U);
}

TEST(WorkersTest, TheSlowLaneKeepsItsOrderAndDelaysNoCopy) {
  auto workers = pool(1);
  std::promise<void> let_go;
  std::vector<Count*> order;
  std::vector<Count> segments(20);
  segments[0].waits_for = &let_go;
  for (Count& job : segments) {
    job.order = &order;
    workers->submit(job, Workers::Lane::kSegment);
  }
  Count copy;
  workers->submit(copy, Workers::Lane::kCopy);
  collect(*workers, 1);
  EXPECT_EQ(copy.ended, 1);
  let_go.set_value();
  collect(*workers, segments.size());
  ASSERT_EQ(order.size(), segments.size());
  for (std::size_t index = 0; index < segments.size(); ++index) EXPECT_EQ(order[index], &segments[index]);
}

TEST(WorkersTest, AJobMaySubmitItselfAgainWhenItIsDone) {
  class Again final : public Job {
   public:
    explicit Again(Workers& workers) : workers_(workers) {}
    void run() override { ++runs; }
    void done() override {
      if (runs < 5) workers_.submit(*this, Workers::Lane::kCopy);
    }
    int runs = 0;

   private:
    Workers& workers_;
  };
  auto workers = pool(2);
  Again job(*workers);
  workers->submit(job, Workers::Lane::kCopy);
  collect(*workers, 5);
  EXPECT_EQ(job.runs, 5);
}

TEST(WorkersTest, WaitIdleWaitsForTheLastJob) {
  auto workers = pool(2);
  std::vector<Count> jobs(100);
  for (Count& job : jobs) workers->submit(job, Workers::Lane::kCopy);
  workers->wait_idle();
  for (const Count& job : jobs) EXPECT_EQ(job.ran, 1);
  EXPECT_EQ(workers->collect(), jobs.size());
}

TEST(WorkersTest, StopWithWorkQueued) {
  std::vector<Count> jobs(100);
  auto workers = pool(1);
  for (Count& job : jobs) workers->submit(job, Workers::Lane::kCopy);
  workers.reset();
  for (const Count& job : jobs) EXPECT_LE(job.ran, 1);
}

TEST(WorkersTest, ThereIsAlwaysOneAndNeverTooMany) {
  EXPECT_GE(pool(0)->copiers(), 1U);
  EXPECT_EQ(pool(100'000)->copiers(), Workers::kCopiersMax);
}

// Each job waits for the others to run, too.
TEST(WorkersTest, ThePinnersWorkAtOnceOnTheProcessorsThatTheyAreGiven) {
  constexpr unsigned kPinners = 3;
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    unsigned running = 0;
  };
  class Together final : public Job {
   public:
    explicit Together(Shared& shared) : shared_(shared) {}
    void run() override {
      ASSERT_EQ(sched_getaffinity(0, sizeof(may_run), &may_run), 0);
      std::unique_lock lock(shared_.mutex);
      ++shared_.running;
      shared_.changed.notify_all();
      met = shared_.changed.wait_for(lock, std::chrono::seconds(60), [&] { return shared_.running == kPinners; });
    }
    void done() override {}
    bool met = false;
    cpu_set_t may_run{};

   private:
    Shared& shared_;
  };
  cpu_set_t allowed{};
  ASSERT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  unsigned first = 0;
  while (!CPU_ISSET(first, &allowed)) ++first;
  auto workers = Workers::create({.copiers = 1, .pinners = kPinners, .pinner_processors = {first}});
  ASSERT_TRUE(workers);
  EXPECT_EQ((*workers)->pinners(), 0U);
  for (int again = 0; again < 2; ++again) ASSERT_TRUE((*workers)->start_pinners());
  EXPECT_EQ((*workers)->pinners(), kPinners);
  Shared shared;
  std::vector<std::unique_ptr<Together>> jobs;
  for (unsigned each = 0; each < kPinners; ++each) {
    jobs.push_back(std::make_unique<Together>(shared));
    (*workers)->submit(*jobs.back(), Workers::Lane::kPin);
  }
  collect(**workers, kPinners);
  for (const auto& job : jobs) {
    EXPECT_TRUE(job->met);
    EXPECT_EQ(CPU_COUNT(&job->may_run), 1);
    EXPECT_TRUE(CPU_ISSET(first, &job->may_run));
  }
}

TEST(WorkersTest, ThereAreAsManyPinnersAsProcessorsNearTheMemory) {
  const auto pinners = [](std::vector<unsigned> processors) {
    auto workers = Workers::create({.copiers = 1, .pinner_processors = std::move(processors)});
    EXPECT_TRUE(workers && (*workers)->start_pinners());
    return (*workers)->pinners();
  };
  EXPECT_EQ(pinners({0, 1, 2}), 3U);
  EXPECT_EQ(pinners(std::vector<unsigned>(100)), Workers::kPinnersMax);
  EXPECT_GE(pinners({}), 1U);
}

// Pinning is a wish: processors that are not there change nothing.
TEST(WorkersTest, RunOnNodesThatDoNotExist) {
  auto made = Workers::create({.copiers = 2, .node_processors = {{0}, {9999}}});
  ASSERT_TRUE(made);
  Count job;
  (*made)->submit(job, Workers::Lane::kCopy);
  collect(**made, 1);
  EXPECT_EQ(job.ran, 1);
}

}  // namespace
}  // namespace terrace::mover
