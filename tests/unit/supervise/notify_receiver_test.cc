// SPDX-License-Identifier: Apache-2.0
// Shows that the supervisor takes well-formed messages of one process, and refuses all else without keeping anything of
// it.
#include "supervise/notify_receiver.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <random>

#include "service/notify_socket.h"

namespace terrace::supervise {
namespace {

using Store = Notification::Store;

std::vector<Fd> descriptors(std::size_t count) {
  std::vector<Fd> made;
  for (std::size_t i = 0; i < count; ++i) made.emplace_back(memfd_create("sent", MFD_CLOEXEC));
  return made;
}

std::size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

TEST(ParseNotification, ReadsTheProtocol) {
  const auto ready = parse_notification("READY=1\nSTATUS=serving\nMAINPID=5\n", {});
  ASSERT_TRUE(ready.has_value());
  EXPECT_TRUE(ready->ready && !ready->stopping && !ready->watchdog && !ready->barrier);
  EXPECT_TRUE(parse_notification("STOPPING=1", {})->stopping);
  EXPECT_TRUE(parse_notification("WATCHDOG=1", {})->watchdog);
  EXPECT_FALSE(parse_notification("READY=0", {})->ready);
  const auto added = parse_notification("FDSTORE=1\nFDPOLL=0\nFDNAME=segment 7", descriptors(1));
  ASSERT_TRUE(added.has_value());
  EXPECT_EQ(added->store, Store::kAdd);
  EXPECT_EQ(added->name, "segment 7");
  EXPECT_EQ(added->descriptors.size(), 1u);
  const auto removed = parse_notification("FDSTOREREMOVE=1\nFDNAME=segment 7", {});
  ASSERT_TRUE(removed.has_value());
  EXPECT_EQ(removed->store, Store::kRemove);
  EXPECT_TRUE(parse_notification("BARRIER=1", descriptors(1))->barrier);
}

TEST(ParseNotification, RefusesWhatIsNotTheProtocol) {
  struct Case {
    std::string text;
    std::size_t descriptors;
  };
  for (const Case& wrong : std::vector<Case>{{"", 0},
                                             {"\n\n", 0},
                                             {"READY", 0},
                                             {std::string("READY=1\0", 8), 0},
                                             {"READY=1", 1},
                                             {"FDSTORE=1\nFDNAME=a", 0},
                                             {"FDSTORE=1\nFDNAME=a", 2},
                                             {"FDSTORE=1", 1},
                                             {"FDSTORE=1\nFDNAME=a:b", 1},
                                             {"FDSTOREREMOVE=1", 0},
                                             {"FDSTOREREMOVE=1\nFDNAME=a", 1},
                                             {"BARRIER=1", 0},
                                             {"BARRIER=1", 2},
                                             {"BARRIER=1\nREADY=1", 1}}) {
    const std::size_t before = open_descriptors();
    const auto parsed = parse_notification(wrong.text, descriptors(wrong.descriptors));
    ASSERT_FALSE(parsed.has_value()) << wrong.text;
    EXPECT_EQ(parsed.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(open_descriptors(), before) << wrong.text;
  }
}

TEST(ParseNotification, SurvivesRandomLines) {
  const auto seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  const std::vector<std::string> pieces{
      "FDSTORE=1", "FDSTOREREMOVE=1",   "FDNAME=", "FDNAME=a", "BARRIER=1", "READY=1", "\n", ":", "=", "x",
      "\xff",      std::string(1, '\0')};
  const std::size_t before = open_descriptors();
  for (int i = 0; i < 20'000; ++i) {
    std::string text;
    for (auto count = random() % 8; count > 0; --count) text += pieces[random() % pieces.size()];
    const auto parsed = parse_notification(text, descriptors(random() % 3));
    if (parsed && parsed->store != Store::kNothing) {
      ASSERT_FALSE(parsed->name.empty());
      ASSERT_EQ(parsed->descriptors.size(), parsed->store == Store::kAdd ? 1u : 0u);
    }
  }
  EXPECT_EQ(open_descriptors(), before);
}

class NotifyReceiverTest : public testing::Test {
 protected:
  NotifyReceiverTest() {
    auto created = NotifyReceiver::create();
    EXPECT_TRUE(created.has_value()) << created.error().message;
    receiver_.emplace(std::move(*created));
    setenv("NOTIFY_SOCKET", receiver_->path().c_str(), 1);
  }
  void TearDown() override { unsetenv("NOTIFY_SOCKET"); }

  std::optional<NotifyReceiver> receiver_;
};

TEST_F(NotifyReceiverTest, IsPrivateAndGoesWithItsFolder) {
  struct stat status{};
  const std::filesystem::path path = receiver_->path();
  ASSERT_EQ(stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777u, 0600u);
  ASSERT_EQ(stat(path.parent_path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777u, 0700u);
  receiver_.reset();
  EXPECT_FALSE(std::filesystem::exists(path.parent_path()));
}

TEST_F(NotifyReceiverTest, TakesOneProcessesMessagesAlone) {
  const auto socket = service::NotifySocket::from_environment();
  ASSERT_TRUE(socket.has_value());
  EXPECT_FALSE(receiver_->receive(getpid()).has_value());
  const auto sent = descriptors(1);
  const int number = sent[0].get();
  ASSERT_TRUE(socket->send("FDSTORE=1\nFDNAME=a", {&number, 1}).value());
  const auto own = receiver_->receive(getpid());
  ASSERT_TRUE(own.has_value());
  ASSERT_TRUE(own->has_value()) << own->error().message;
  EXPECT_EQ((*own)->descriptors.size(), 1u);

  const pid_t other = fork();
  if (other == 0) _exit(socket->send("FDSTORE=1\nFDNAME=b", {&number, 1}).value_or(false) ? 0 : 1);
  int status = 0;
  ASSERT_EQ(waitpid(other, &status, 0), other);
  ASSERT_EQ(status, 0);
  const std::size_t before = open_descriptors();
  const auto foreign = receiver_->receive(getpid());
  ASSERT_TRUE(foreign.has_value());
  ASSERT_FALSE(foreign->has_value());
  EXPECT_EQ(foreign->error().code, ErrorCode::kPermissionDenied);
  EXPECT_EQ(open_descriptors(), before) << "its descriptor is closed";
}

TEST_F(NotifyReceiverTest, RefusesWhatIsTooLong) {
  const auto socket = service::NotifySocket::from_environment();
  ASSERT_TRUE(socket.has_value());
  const std::string longest = "STATUS=" + std::string(service::kMessageBytesMax - 7, 'x');
  ASSERT_EQ(::send(socket->descriptor(), longest.data(), longest.size(), 0), static_cast<ssize_t>(longest.size()));
  EXPECT_TRUE(receiver_->receive(getpid())->has_value());
  const std::string longer = longest + "x";
  ASSERT_EQ(::send(socket->descriptor(), longer.data(), longer.size(), 0), static_cast<ssize_t>(longer.size()));
  EXPECT_EQ(receiver_->receive(getpid())->error().code, ErrorCode::kInvalidArgument);
  EXPECT_FALSE(receiver_->receive(getpid()).has_value());
}

TEST_F(NotifyReceiverTest, SurvivesAMessageFullOfDescriptors) {
  const auto socket = service::NotifySocket::from_environment();
  ASSERT_TRUE(socket.has_value());
  const std::vector<int> many(service::kMessageDescriptorsMax, STDERR_FILENO);
  ASSERT_TRUE(socket->send("FDSTORE=1\nFDNAME=a", many).value());
  const std::size_t before = open_descriptors();
  const auto received = receiver_->receive(getpid());
  ASSERT_TRUE(received.has_value());
  EXPECT_FALSE(received->has_value());
  EXPECT_EQ(open_descriptors(), before);
}

}  // namespace
}  // namespace terrace::supervise
