// SPDX-License-Identifier: Apache-2.0
// Shows that a socket is claimed by one daemon at a time, with its mode, and that connections carry their credentials.
#include "front/doors/listener.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>

#include "front/reactor/mailbox.h"

namespace terrace::front {
namespace {

class ListenerTest : public testing::Test {
 protected:
  ListenerTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "terrace-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  ~ListenerTest() override { std::filesystem::remove_all(folder_); }
  std::string path() const { return folder_ / "data.sock"; }
  Fd connect() const {
    Fd client(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, path().c_str());
    EXPECT_EQ(::connect(client.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    return client;
  }
  std::filesystem::path folder_;
};

TEST_F(ListenerTest, AcceptsWithCredentials) {
  auto listener = Listener::bind(path(), SOCK_SEQPACKET, 0600);
  ASSERT_TRUE(listener.has_value()) << listener.error().message;
  struct stat status{};
  ASSERT_EQ(stat(path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777u, 0600u);
  EXPECT_FALSE(listener->accept().has_value());
  const Fd client = connect();
  const auto accepted = listener->accept();
  ASSERT_TRUE(accepted.has_value());
  EXPECT_EQ(accepted->credentials.pid, getpid());
  EXPECT_EQ(accepted->credentials.uid, getuid());
}

TEST_F(ListenerTest, OneDaemonASocket) {
  const auto first = Listener::bind(path(), SOCK_SEQPACKET, 0600);
  ASSERT_TRUE(first.has_value());
  const auto second = Listener::bind(path(), SOCK_SEQPACKET, 0600);
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code, ErrorCode::kFailedPrecondition);
  EXPECT_NE(second.error().message.find(path()), std::string::npos);
  const Fd client = connect();
  EXPECT_TRUE(client) << "the first one serves on";
}

TEST_F(ListenerTest, ReplacesWhatADeadDaemonLeft) {
  const Fd dead(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, path().c_str());
  ASSERT_EQ(bind(dead.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  EXPECT_TRUE(Listener::bind(path(), SOCK_SEQPACKET, 0600).has_value());
  EXPECT_FALSE(std::filesystem::exists(path())) << "and takes its own away";
}

TEST_F(ListenerTest, LeavesSomebodysFileAlone) {
  std::ofstream(path()) << "a thesis";
  const auto listener = Listener::bind(path(), SOCK_SEQPACKET, 0600);
  ASSERT_FALSE(listener.has_value());
  EXPECT_EQ(listener.error().code, ErrorCode::kFailedPrecondition);
  EXPECT_EQ(std::filesystem::file_size(path()), 8u);
}

TEST_F(ListenerTest, IsThereAgainWhereItsFolderWasRemoved) {
  const std::filesystem::path run = folder_ / "run";
  const std::string path = run / "data.sock";
  std::filesystem::create_directory(run);
  std::filesystem::permissions(run, std::filesystem::perms{0710});
  auto listener = Listener::bind(path, SOCK_SEQPACKET, 0620);
  ASSERT_TRUE(listener.has_value()) << listener.error().message;
  EXPECT_TRUE(listener->in_place());
  std::filesystem::remove_all(run);
  EXPECT_FALSE(listener->in_place());
  const auto was = listener->renew();
  ASSERT_TRUE(was.has_value()) << was.error().message;
  EXPECT_TRUE(listener->in_place());
  struct stat status{};
  ASSERT_EQ(stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777u, 0620u);
  ASSERT_EQ(stat(run.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777u, 0710u);
  EXPECT_FALSE(Listener::bind(path, SOCK_SEQPACKET, 0600).has_value()) << "it has its lock again";
  std::filesystem::remove(path);
  EXPECT_FALSE(listener->in_place()) << "the lock alone does not do";
  ASSERT_TRUE(listener->renew().has_value()) << "nor stands in its own way";
}

TEST_F(ListenerTest, LeavesToAnotherDaemonWhatThatOneTookMeanwhile) {
  auto first = std::optional(Listener::bind(path(), SOCK_SEQPACKET, 0600).value());
  std::filesystem::remove(path());
  std::filesystem::remove(path() + ".lock");
  const auto second = Listener::bind(path(), SOCK_SEQPACKET, 0600);
  ASSERT_TRUE(second.has_value());
  const auto renewed = first->renew();
  ASSERT_FALSE(renewed.has_value());
  EXPECT_NE(renewed.error().message.find("another terraced"), std::string::npos) << renewed.error().message;
  first.reset();
  EXPECT_TRUE(second->in_place());
}

TEST_F(ListenerTest, NamesALongPath) {
  const auto listener = Listener::bind("/" + std::string(200, 'x'), SOCK_SEQPACKET, 0600);
  ASSERT_FALSE(listener.has_value());
  EXPECT_NE(listener.error().message.find("107"), std::string::npos);
}

TEST(Mailbox, RunsJobsInOrderAndIsBounded) {
  auto mailbox = Mailbox::create(2);
  ASSERT_TRUE(mailbox.has_value());
  std::string order;
  EXPECT_TRUE((*mailbox)->post([&] { order += 'a'; }));
  EXPECT_TRUE((*mailbox)->post([&] { order += 'b'; }));
  EXPECT_FALSE((*mailbox)->post([&] { order += 'c'; }));
  (*mailbox)->run();
  EXPECT_EQ(order, "ab");
  EXPECT_TRUE((*mailbox)->post([&] { order += 'd'; }));
  (*mailbox)->close();
  EXPECT_EQ(order, "abd");
  EXPECT_FALSE((*mailbox)->post([] {}));
}

}  // namespace
}  // namespace terrace::front
