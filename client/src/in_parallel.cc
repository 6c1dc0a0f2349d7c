// SPDX-License-Identifier: Apache-2.0
#include "in_parallel.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>
#include <vector>

namespace terrace::client {
namespace {

std::size_t processors() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (::sched_getaffinity(0, sizeof allowed, &allowed) == 0) return static_cast<std::size_t>(CPU_COUNT(&allowed));
  return std::thread::hardware_concurrency();  // more of them than the set has room for
}

}  // namespace

void in_parallel(std::size_t count, const std::function<void(std::size_t)>& work) {
  std::atomic<std::size_t> next = 0;
  const auto take = [&] {
    for (std::size_t at = 0; (at = next.fetch_add(1)) < count;) work(at);
  };
  const std::size_t threads = std::min({count, processors(), kThreadsAtOnce});
  std::vector<std::jthread> others;
  try {
    for (std::size_t each = 1; each < threads; ++each) others.emplace_back(take);
  } catch (const std::system_error&) {  // no more threads: those that there are do it
  }
  take();
}

}  // namespace terrace::client
