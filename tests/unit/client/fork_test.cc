// SPDX-License-Identifier: Apache-2.0
// Shows what a forked child has of its parent's session: nothing. Its calls say so, its destructors do nothing, the
// memory is not there, and the parent's leases stay as they were.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <optional>

#include "unit/client/scripted_daemon.h"

namespace {

bool in_forked_child = false;

}  // namespace

// LeakSanitizer's question at exit. What only a thread of the parent knew of at the fork is no leak of the child's.
extern "C" int __lsan_is_turned_off() { return in_forked_child ? 1 : 0; }

namespace terrace::client {
namespace {

// The exit status of a child that runs `body`: what it returns, or 200 + the signal that ended it.
int in_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    in_forked_child = true;
    ::_exit(body());
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 200 + WTERMSIG(status);
}

bool names_fork(const Error& error) {
  return error.code == ErrorCode::kFailedPrecondition && error.message.find("fork") != std::string::npos;
}

TEST(Fork, LeavesTheChildNothingAndTheParentEverything) {
  ScriptedDaemon daemon;
  std::optional<Client> client = daemon.open();
  const Tensor tensor = daemon.create(*client, "weights", 4096, 3);
  std::byte* memory = daemon.pass_segment(shm::kPlaceHost, 0);
  memory[0] = std::byte{3};
  daemon.publish(3, {.state = shm::State::kResident}, 0);
  std::optional<Lease> lease = std::move(*client->acquire(tensor));
  const LeaseToken token = client->acquire(tensor)->detach();
  std::optional<Pending<void>> pending = client->swap_out_async({&tensor, 1});
  const Asked asked = daemon.next();

  const std::byte* address = lease->bytes().data();
  EXPECT_EQ(in_child([&] {
              if (const auto refused = client->acquire(tensor); refused || !names_fork(refused.error())) return 1;
              if (const auto refused = client->create({.name = "x", .bytes = 1});
                  refused || !names_fork(refused.error())) {
                return 2;
              }
              if (const auto refused = client->mark_step(); refused || !names_fork(refused.error())) return 3;
              if (const auto refused = pending->wait({}); refused || !names_fork(refused.error())) return 4;
              if (::msync(const_cast<std::byte*>(address), 4096, MS_ASYNC) == 0 || errno != ENOMEM) return 5;
              release_token(token);
              if (const auto refused = lease->release(); refused || !names_fork(refused.error())) return 6;
              lease.reset();
              pending.reset();
              client.reset();
              return 0;
            }),
            0);
  EXPECT_EQ(daemon.word(3).readers, 2u);
  EXPECT_FALSE(daemon.has_message()) << "the child said something in its parent's name";
  EXPECT_EQ(lease->bytes()[0], std::byte{3});
  daemon.answer(asked);
  EXPECT_TRUE(pending->wait(std::chrono::seconds(60)).has_value());
  EXPECT_TRUE(lease->release().has_value());
  release_token(token);
  EXPECT_EQ(daemon.word(3).readers, 0u);
}

TEST(Fork, LetsTheChildExit) {
  ScriptedDaemon daemon;
  Client client = daemon.open();
  const Tensor tensor = daemon.create(client, "weights", 4096, 3);
  daemon.pass_segment(shm::kPlaceHost, 0);
  daemon.publish(3, {.state = shm::State::kResident}, 0);
  ASSERT_TRUE(client.acquire(tensor).has_value());  // from here on this thread has an access log
  EXPECT_EQ(in_child([]() -> int { std::exit(7); }), 7);
  EXPECT_EQ(in_child([&] {
              client.close();
              return 3;
            }),
            3);
  EXPECT_TRUE(client.acquire(tensor).has_value());
}

TEST(Fork, ClosesTheDescriptorsInTheChild) {
  ScriptedDaemon daemon;
  std::optional<Client> client = daemon.open();
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    char end = 0;
    ::close(ends[1]);
    [[maybe_unused]] const ssize_t read = ::read(ends[0], &end, 1);  // lives until the parent has looked
    ::_exit(0);
  }
  client.reset();
  EXPECT_EQ(daemon.receive().size(), sizeof(shm::Bye));
  EXPECT_TRUE(daemon.receive().empty()) << "the child holds the connection open";
  ::close(ends[1]);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  ::close(ends[0]);
}

}  // namespace
}  // namespace terrace::client
