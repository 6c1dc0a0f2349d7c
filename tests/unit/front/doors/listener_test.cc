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
