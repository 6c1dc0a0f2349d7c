// SPDX-License-Identifier: Apache-2.0
// Shows that the deaths of others cost a trainer nothing: as many system calls a lease and a request as without them.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <thread>

#include "faults/cases.h"

namespace terrace::faults {
namespace {

using e2e::kMiB;
using e2e::Process;
using e2e::Terraced;

constexpr std::uint64_t kHits = 1000;
constexpr std::uint64_t kRequests = 200;

// Leases what is resident, and asks for what is answered at once: in between it stops, for whoever traces it.
int measured(const std::string& socket) {
  if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) return 1;
  Result<Client> client = Client::connect({.socket = socket, .guarantees = {{Place::host(), 2 * kMiB}}});
  if (!client) return 2;
  const Result<Tensor> tensor = client->create({.name = "resident", .bytes = kMiB});
  if (!tensor || !client->acquire(*tensor, {.mode = Mode::kOverwrite})) return 3;
  for (int phase = 0; phase < 2; ++phase) {
    ::raise(SIGSTOP);
    for (std::uint64_t i = 0; i < kHits; ++i)
      if (!client->acquire(*tensor)) return 4;
    ::raise(SIGSTOP);
    for (std::uint64_t i = 0; i < kRequests; ++i)
      if (!client->prefetch({&*tensor, 1})) return 5;
  }
  ::raise(SIGSTOP);
  return 0;
}

// Lets the traced process run until it stops itself the next time; how often it called what meanwhile.
std::map<long, std::uint64_t> calls_until_it_stops(pid_t pid) {  // NOLINT(google-runtime-int): the kernel's type
  std::map<long, std::uint64_t> calls;                           // NOLINT(google-runtime-int)
  int signal = 0;
  while (true) {
    int status = 0;
    if (::ptrace(PTRACE_SYSCALL, pid, nullptr, signal) != 0 || ::waitpid(pid, &status, 0) != pid) return calls;
    if (!WIFSTOPPED(status)) return calls;
    if (WSTOPSIG(status) == SIGSTOP) return calls;
    signal = WSTOPSIG(status) == (SIGTRAP | 0x80) ? 0 : WSTOPSIG(status);
    if (signal != 0) continue;
    __ptrace_syscall_info info{};
    if (::ptrace(static_cast<__ptrace_request>(PTRACE_GET_SYSCALL_INFO), pid, sizeof info, &info) > 0 &&
        info.op == PTRACE_SYSCALL_INFO_ENTRY)
      ++calls[static_cast<long>(info.entry.nr)];  // NOLINT(google-runtime-int)
  }
}

// Those by which a process stops itself.
void leave_out_stops(std::map<long, std::uint64_t>& calls) {  // NOLINT(google-runtime-int)
  for (const long number : {SYS_tgkill, SYS_getpid, SYS_gettid, SYS_rt_sigprocmask}) calls.erase(number);  // NOLINT
}

int hold_and_wait(const std::string& socket, const Beacon& ready) {
  Result<Client> client = Client::connect({.socket = socket, .guarantees = {{Place::host(), 4 * kMiB}}});
  if (!client) return 1;
  const Result<Tensor> tensor = client->create({.name = "held", .bytes = 2 * kMiB});
  if (!tensor) return 2;
  const Result<Lease> lease = client->acquire(*tensor, {.mode = Mode::kOverwrite});
  if (!lease || !ready.say('x')) return 3;
  ::pause();
  return 4;
}

TEST(Bystander, CallsTheSystemAsOftenWhileOthersDie) {
  const Terraced terraced;
  const LogOfFailure log(terraced);
  Process bystander([&] { return measured(terraced.data_socket()); });
  int status = 0;
  ASSERT_EQ(::waitpid(bystander.pid(), &status, 0), bystander.pid());
  if (WIFEXITED(status) && WEXITSTATUS(status) == 1) GTEST_SKIP() << "nobody may be traced here";
  ASSERT_TRUE(WIFSTOPPED(status));
  ASSERT_EQ(::ptrace(PTRACE_SETOPTIONS, bystander.pid(), nullptr, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL), 0);
  auto quiet_hits = calls_until_it_stops(bystander.pid());
  auto quiet_requests = calls_until_it_stops(bystander.pid());

  std::atomic<bool> over = false;
  std::atomic<std::uint64_t> deaths = 0;
  std::thread killer([&] {
    do {
      const Beacon ready;
      Process trainer([&] { return hold_and_wait(terraced.data_socket(), ready); });
      if (ready.hear() != 'x') return;
      trainer.kill();
      trainer.wait();
      ++deaths;
    } while (!over);
  });
  EXPECT_TRUE(e2e::eventually([&] { return deaths > 0; }));
  auto hits = calls_until_it_stops(bystander.pid());
  auto requests = calls_until_it_stops(bystander.pid());
  over = true;
  killer.join();
  ASSERT_EQ(::ptrace(PTRACE_DETACH, bystander.pid(), nullptr, 0), 0);
  EXPECT_EQ(bystander.wait(), 0);

  for (auto* calls : {&quiet_hits, &quiet_requests, &hits, &requests}) leave_out_stops(*calls);
  EXPECT_TRUE(quiet_hits.empty()) << "a lease on what is there is no system call";
  EXPECT_TRUE(hits.empty());
  for (auto* calls : {&quiet_requests, &requests}) {
    EXPECT_LE((*calls)[SYS_write], kRequests) << "a request rings once, and not at all while the daemon polls";
    for (const auto& [call, count] : *calls)
      EXPECT_TRUE(count == 0 || call == SYS_write || call == SYS_futex)
          << "system call " << call << ", " << count << " times";
  }
  figure(1, "beside " + std::to_string(deaths) + " deaths: 0 system calls for " + std::to_string(kHits) +
                " leases; for " + std::to_string(kRequests) + " requests " + std::to_string(requests[SYS_write]) +
                " doorbells and " + std::to_string(requests[SYS_futex]) + " waits, without them " +
                std::to_string(quiet_requests[SYS_write]) + " and " + std::to_string(quiet_requests[SYS_futex]));
}

}  // namespace
}  // namespace terrace::faults
