// SPDX-License-Identifier: Apache-2.0
// Shows that descriptors are given to a supervisor in its protocol, bounded and acknowledged, without ever blocking,
// and are taken from it checked. The supervisor is a real socket that records.
#include "service/descriptor_store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <thread>

#include "unit/service/recording_supervisor.h"

namespace terrace::service {
namespace {

Fd memory() { return Fd(memfd_create("stored", MFD_CLOEXEC)); }

ino_t inode(int descriptor) {
  struct stat status{};
  EXPECT_EQ(fstat(descriptor, &status), 0);
  return status.st_ino;
}

bool hung_up(const Fd& barrier) {
  pollfd waited{barrier.get(), 0, 0};
  return poll(&waited, 1, 0) == 1 && (waited.revents & POLLHUP) != 0;
}

DescriptorStore open_store() {
  auto store = DescriptorStore::from_environment();
  EXPECT_TRUE(store.has_value()) << store.error().message;
  EXPECT_TRUE(store->keeps());
  return std::move(*store);
}

TEST(DescriptorStore, GivesAndTakesBackByName) {
  const RecordingSupervisor supervisor(8);
  DescriptorStore store = open_store();
  EXPECT_EQ(store.capacity(), 8u);
  const Fd file = memory();
  ASSERT_TRUE(store.store("segment 7", file.get()).has_value());
  EXPECT_EQ(store.size(), 1u);
  auto message = supervisor.receive();
  ASSERT_TRUE(message.has_value());
  EXPECT_EQ(message->text, "FDSTORE=1\nFDPOLL=0\nFDNAME=segment 7");
  ASSERT_EQ(message->descriptors.size(), 1u);
  EXPECT_EQ(inode(message->descriptors[0].get()), inode(file.get()));

  ASSERT_TRUE(store.forget("segment 7").has_value());
  EXPECT_EQ(store.size(), 0u);
  message = supervisor.receive();
  ASSERT_TRUE(message.has_value());
  EXPECT_EQ(message->text, "FDSTOREREMOVE=1\nFDNAME=segment 7");
  EXPECT_TRUE(message->descriptors.empty());
}

TEST(DescriptorStore, ABarrierEndsWhenTheSupervisorGotThere) {
  const RecordingSupervisor supervisor(8);
  DescriptorStore store = open_store();
  ASSERT_TRUE(store.store("a", memory().get()).has_value());
  const auto barrier = store.barrier();
  ASSERT_TRUE(barrier.has_value());
  EXPECT_FALSE(hung_up(*barrier));
  EXPECT_TRUE(supervisor.receive().has_value());
  EXPECT_FALSE(hung_up(*barrier)) << "handled what came before, not the barrier";
  {
    const auto message = supervisor.receive();
    ASSERT_TRUE(message.has_value());
    EXPECT_EQ(message->text, "BARRIER=1");
    EXPECT_EQ(message->descriptors.size(), 1u);
    EXPECT_FALSE(hung_up(*barrier)) << "received, not closed";
  }
  EXPECT_TRUE(hung_up(*barrier));
}

TEST(DescriptorStore, SettlesOrSaysThatItDidNot) {
  const RecordingSupervisor supervisor(8);
  DescriptorStore store = open_store();
  ASSERT_TRUE(store.store("a", memory().get()).has_value());
  const auto late = store.settle(std::chrono::milliseconds(1));
  ASSERT_FALSE(late.has_value());
  EXPECT_EQ(late.error().code, ErrorCode::kDeadlineExceeded);
  const std::jthread reader([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) static_cast<void>(supervisor.receive());
  });
  EXPECT_TRUE(store.settle(std::chrono::seconds(60)).has_value());
}

TEST(DescriptorStore, WaitsForRoomInOrderWithoutBlocking) {
  const RecordingSupervisor supervisor(1000);
  DescriptorStore store = open_store();
  std::vector<ino_t> given;
  while (!store.pending() || given.size() < 600) {
    const Fd file = memory();
    given.push_back(inode(file.get()));
    ASSERT_TRUE(store.store(std::to_string(given.size()), file.get()).has_value());
  }
  const auto barrier = store.barrier();
  ASSERT_TRUE(barrier.has_value());
  for (std::size_t i = 0; i < given.size(); ++i) {
    const auto message = supervisor.receive();
    ASSERT_TRUE(message.has_value());
    EXPECT_EQ(message->text, "FDSTORE=1\nFDPOLL=0\nFDNAME=" + std::to_string(i + 1));
    ASSERT_EQ(message->descriptors.size(), 1u);
    EXPECT_EQ(inode(message->descriptors[0].get()), given[i]) << "a duplicate: the giver's own was closed";
    ASSERT_TRUE(store.flush().has_value());
  }
  EXPECT_FALSE(store.pending());
  EXPECT_FALSE(hung_up(*barrier));
  EXPECT_EQ(supervisor.receive()->text, "BARRIER=1");
  EXPECT_TRUE(hung_up(*barrier));
}

TEST(DescriptorStore, TheQueueIsBounded) {
  // A message that waits holds a duplicate of its descriptor.
  rlimit files{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  const rlim_t needed = 2 * kPendingMessagesMax;
  if (files.rlim_max < needed) GTEST_SKIP() << "the limit of open files is " << files.rlim_max;
  files.rlim_cur = std::max(files.rlim_cur, needed);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
  const RecordingSupervisor supervisor(2 * kPendingMessagesMax);
  DescriptorStore store = open_store();
  const Fd file = memory();
  Result<void> last;
  std::size_t given = 0;
  for (; last && given <= kPendingMessagesMax; ++given) last = store.store(std::to_string(given), file.get());
  while (last) last = store.store(std::to_string(given++), file.get());
  EXPECT_EQ(last.error().code, ErrorCode::kResourceExhausted);
  const std::size_t held = store.size();
  EXPECT_FALSE(store.barrier().has_value());
  EXPECT_FALSE(store.forget("0").has_value());
  EXPECT_EQ(store.size(), held) << "a call that failed changed nothing";
  EXPECT_TRUE(supervisor.receive().has_value());
  EXPECT_TRUE(store.flush().has_value());
  EXPECT_TRUE(store.forget("0").has_value());
}

TEST(DescriptorStore, RefusesWhatASupervisorWouldDropInSilence) {
  const RecordingSupervisor supervisor(2);
  DescriptorStore store = open_store();
  ASSERT_TRUE(store.store("a", memory().get()).has_value());
  ASSERT_TRUE(store.store("b", memory().get()).has_value());
  const auto third = store.store("c", memory().get());
  ASSERT_FALSE(third.has_value());
  EXPECT_EQ(third.error().code, ErrorCode::kResourceExhausted);
  EXPECT_NE(third.error().message.find("FileDescriptorStoreMax="), std::string::npos);
  const auto again = store.store("a", memory().get());
  ASSERT_FALSE(again.has_value());
  EXPECT_EQ(again.error().code, ErrorCode::kAlreadyExists);
  EXPECT_EQ(store.forget("c").error().code, ErrorCode::kNotFound);
  EXPECT_TRUE(store.forget("a").has_value());
  EXPECT_TRUE(store.store("c", memory().get()).has_value());
}

TEST(DescriptorStore, RefusesNamesThatOneStartCouldNotPass) {
  const RecordingSupervisor supervisor(100'000);
  DescriptorStore store = open_store();
  std::size_t bytes = 0;
  Result<void> last;
  for (std::size_t i = 0; last; ++i) {
    std::string name = std::to_string(i);
    name.resize(kDescriptorNameBytesMax, 'x');
    last = store.store(name, memory().get());
    if (last) bytes += name.size() + 1;
    while (supervisor.receive()) {
    }
  }
  EXPECT_EQ(last.error().code, ErrorCode::kResourceExhausted);
  EXPECT_LE(bytes, kAllNamesBytesMax);
  EXPECT_GT(bytes + kDescriptorNameBytesMax + 1, kAllNamesBytesMax);
  EXPECT_TRUE(store.store("short", memory().get()).has_value()) << "which still has room";
}

TEST(DescriptorStore, ChecksNames) {
  for (const std::string& good : {std::string("a"), std::string("s 1/x=y"), std::string(255, 'n')})
    EXPECT_TRUE(check_descriptor_name(good).has_value()) << good;
  for (const std::string& bad : {std::string(), std::string("a:b"), std::string("a\nb"), std::string("\x7f"),
                                 std::string("\xc3\xa9"), std::string(256, 'n'), std::string("a\0b", 3)}) {
    const auto checked = check_descriptor_name(bad);
    ASSERT_FALSE(checked.has_value()) << bad;
    EXPECT_EQ(checked.error().code, ErrorCode::kInvalidArgument);
  }
  const RecordingSupervisor supervisor(8);
  EXPECT_FALSE(open_store().store("a:b", memory().get()).has_value());
  EXPECT_FALSE(supervisor.receive().has_value());
}

TEST(DescriptorStore, KeepsNothingWithoutASupervisorThatDoes) {
  const auto check = [] {
    auto store = DescriptorStore::from_environment();
    ASSERT_TRUE(store.has_value());
    EXPECT_FALSE(store->keeps());
    EXPECT_EQ(store->capacity(), 0u);
    EXPECT_TRUE(store->store("a", memory().get()).has_value());
    EXPECT_TRUE(store->forget("a").has_value());
    EXPECT_EQ(store->size(), 0u);
    EXPECT_TRUE(hung_up(store->barrier().value()));
    EXPECT_TRUE(store->settle(std::chrono::seconds(60)).has_value());
    EXPECT_TRUE(store->adopt()->empty());
  };
  check();
  const RecordingSupervisor supervisor(0);
  check();  // a supervisor that does not say that it has a store
  EXPECT_FALSE(supervisor.receive().has_value());
}

TEST(DescriptorStore, SaysThatTheSupervisorHasGone) {
  RecordingSupervisor supervisor(8);
  DescriptorStore store = open_store();
  while (!store.pending())
    ASSERT_TRUE(store.forget("none").error().code == ErrorCode::kNotFound && store.barrier().has_value());
  const auto barrier = store.barrier();
  ASSERT_TRUE(barrier.has_value());
  supervisor.end();
  const auto flushed = store.flush();
  ASSERT_FALSE(flushed.has_value());
  EXPECT_EQ(flushed.error().code, ErrorCode::kUnavailable);
  EXPECT_FALSE(hung_up(*barrier)) << "what was never handled must not look as if it were";
  EXPECT_FALSE(store.settle(std::chrono::seconds(60)).has_value());
}

// Runs `body` in a process of its own, whose descriptors and environment it may change; whether its expectations held.
bool holds_in_a_child(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    body();
    std::fflush(nullptr);
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// Memfds as number 3 and up, and the environment that announces them.
void pass(std::size_t count, const char* number, const char* names) {
  for (std::size_t i = 0; i < count; ++i) {
    const Fd file(memfd_create(std::to_string(i).c_str(), 0));
    if (file.get() == 3 + static_cast<int>(i)) {
      static_cast<void>(dup(file.get()));  // keeps the file open somewhere, and the number for what comes below
    }
    dup2(file.get(), 100 + static_cast<int>(i));
  }
  for (std::size_t i = 0; i < count; ++i) dup2(100 + static_cast<int>(i), 3 + static_cast<int>(i));
  setenv("LISTEN_PID", std::to_string(getpid()).c_str(), 1);
  setenv("LISTEN_FDS", number, 1);
  if (names != nullptr) setenv("LISTEN_FDNAMES", names, 1);
}

TEST(DescriptorStore, AdoptsWhatWasPassed) {
  EXPECT_TRUE(holds_in_a_child([] {
    pass(2, "2", "catalog:segment 1");
    setenv("NOTIFY_SOCKET", "", 1);
    DescriptorStore store;
    auto adopted = store.adopt();
    ASSERT_TRUE(adopted.has_value()) << adopted.error().message;
    ASSERT_EQ(adopted->size(), 2u);
    EXPECT_EQ(inode(adopted->at("catalog").get()), inode(100));
    EXPECT_EQ(inode(adopted->at("segment 1").get()), inode(101));
    for (const auto& [name, descriptor] : *adopted) EXPECT_EQ(fcntl(descriptor.get(), F_GETFD), FD_CLOEXEC);
    EXPECT_EQ(store.size(), 2u);
    EXPECT_EQ(getenv("LISTEN_FDS"), nullptr);
    EXPECT_TRUE(store.adopt()->empty()) << "once";
  }));
}

TEST(DescriptorStore, AdoptsNothingThatIsMeantForAnother) {
  EXPECT_TRUE(holds_in_a_child([] {
    pass(1, "1", "a");
    setenv("LISTEN_PID", std::to_string(getppid()).c_str(), 1);
    EXPECT_TRUE(DescriptorStore().adopt()->empty());
    EXPECT_GE(fcntl(3, F_GETFD), 0);
    EXPECT_EQ(getenv("LISTEN_PID"), nullptr);
  }));
}

TEST(DescriptorStore, RefusesWhatIsNotAsAnnounced) {
  struct Case {
    std::size_t open;
    const char* number;
    const char* names;
    const char* said;
  };
  for (const Case& wrong : {Case{2, "2", "a", "agree"}, Case{2, "1", "a:b", "agree"}, Case{2, "2", nullptr, "agree"},
                            Case{2, "two", "a:b", "agree"}, Case{2, "2", "a:a", "unique"},
                            Case{2, "2", "a:", "1 to 255"}, Case{0, "98", nullptr, "agree"}}) {
    EXPECT_TRUE(holds_in_a_child([&] {
      pass(wrong.open, wrong.number, wrong.names);
      DescriptorStore store;
      const auto adopted = store.adopt();
      ASSERT_FALSE(adopted.has_value());
      EXPECT_EQ(adopted.error().code, ErrorCode::kFailedPrecondition);
      EXPECT_NE(adopted.error().message.find(wrong.said), std::string::npos) << adopted.error().message;
      EXPECT_EQ(store.size(), 0u);
    })) << wrong.number
        << " " << (wrong.names == nullptr ? "(none)" : wrong.names);
  }
  EXPECT_TRUE(holds_in_a_child([] {
    pass(1, "2", "a:b");
    close(4);
    const auto adopted = DescriptorStore().adopt();
    ASSERT_FALSE(adopted.has_value());
    EXPECT_NE(adopted.error().message.find("number 4 (b) is not open"), std::string::npos) << adopted.error().message;
  }));
}

TEST(DescriptorStore, ComparesWhatCameBackWithWhatWasGiven) {
  Adopted adopted;
  adopted.emplace("a", memory());
  adopted.emplace("b", memory());
  const std::vector<std::string> both{"a", "b"};
  EXPECT_TRUE(check_all_returned(adopted, both).has_value());
  const std::vector<std::string> more{"a", "b", "c", "d"};
  const auto compared = check_all_returned(adopted, more);
  ASSERT_FALSE(compared.has_value());
  EXPECT_EQ(compared.error().code, ErrorCode::kDataLoss);
  EXPECT_NE(compared.error().message.find("2 of 4 stored descriptors did not come back: c, d"), std::string::npos)
      << compared.error().message;
}

}  // namespace
}  // namespace terrace::service
