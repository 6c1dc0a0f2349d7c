// SPDX-License-Identifier: Apache-2.0
// Shows that a process's CPU time is that of all its threads, those that have ended among them.
#include "bench/counters.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>

namespace terrace::bench {
namespace {

constexpr std::uint64_t kCpuNs = 20'000'000;

TEST(Counters, OfAProcessHaveTheCpuOfThreadsThatEnded) {
  const Counters before = counters_of_process(::getpid());
  std::thread([] {
    while (counters_of_this_thread().cpu_ns < kCpuNs) continue;
  }).join();
  EXPECT_GE((counters_of_process(::getpid()) - before).cpu_ns, kCpuNs);
}

TEST(Counters, OfAProcessThatIsNotThereAreNone) { EXPECT_EQ(counters_of_process(0).cpu_ns, 0U); }

}  // namespace
}  // namespace terrace::bench
