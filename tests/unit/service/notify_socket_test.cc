// SPDX-License-Identifier: Apache-2.0
// Shows that a supervisor's address and numbers are read as they are meant, and that its absence is no error.
#include "service/notify_socket.h"

#include <gtest/gtest.h>
#include <sys/un.h>
#include <unistd.h>

#include "service/environment.h"
#include "unit/service/recording_supervisor.h"

namespace terrace::service {
namespace {

TEST(NotifyAddress, IsAPathOrAnAbstractName) {
  sockaddr_un address{};
  EXPECT_EQ(notify_address("/run/notify", address), offsetof(sockaddr_un, sun_path) + 11);
  EXPECT_STREQ(address.sun_path, "/run/notify");
  EXPECT_EQ(notify_address("@name", address), offsetof(sockaddr_un, sun_path) + 5);
  EXPECT_EQ(address.sun_path[0], '\0');
  for (const std::string& wrong :
       {std::string(), std::string("/"), std::string("vsock:2:1"), "/" + std::string(107, 'x')})
    EXPECT_EQ(notify_address(wrong, address), 0u) << wrong;
}

TEST(NotifySocket, IsEmptyWithoutASupervisor) {
  unsetenv("NOTIFY_SOCKET");  // a container's own
  const auto socket = NotifySocket::from_environment();
  ASSERT_TRUE(socket.has_value());
  EXPECT_FALSE(*socket);
  EXPECT_TRUE(socket->send("READY=1").value());
}

TEST(NotifySocket, SaysThatNobodyListens) {
  setenv("NOTIFY_SOCKET", "/nonexistent/notify", 1);
  const auto socket = NotifySocket::from_environment();
  unsetenv("NOTIFY_SOCKET");
  ASSERT_FALSE(socket.has_value());
  EXPECT_EQ(socket.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(socket.error().message.find("/nonexistent/notify"), std::string::npos);
}

TEST(NotifySocket, CarriesAMessageFullOfDescriptors) {
  const RecordingSupervisor supervisor(0);
  const auto socket = NotifySocket::from_environment();
  ASSERT_TRUE(socket.has_value());
  const std::vector<int> many(kMessageDescriptorsMax, STDERR_FILENO);
  EXPECT_TRUE(socket->send("FDSTORE=1", many).value());
  const auto message = supervisor.receive();
  ASSERT_TRUE(message.has_value());
  EXPECT_EQ(message->text, "FDSTORE=1");
  EXPECT_EQ(message->descriptors.size(), many.size());
}

TEST(NotifySocket, SaysWhenTheSupervisorDoesNotRead) {
  const RecordingSupervisor supervisor(0);
  const auto socket = NotifySocket::from_environment();
  ASSERT_TRUE(socket.has_value());
  std::size_t sent = 0;
  while (socket->send("STATUS=x").value()) ++sent;
  EXPECT_GT(sent, 0u);
  EXPECT_TRUE(supervisor.receive().has_value());
  EXPECT_TRUE(socket->send("STATUS=x").value()) << "as soon as there is room";
}

TEST(Environment, NumbersAreWholeOrNothing) {
  setenv("TERRACE_TEST_NUMBER", "42", 1);
  EXPECT_EQ(number_from_environment("TERRACE_TEST_NUMBER"), 42u);
  for (const char* wrong : {"", "42 ", "-1", "x", "99999999999999999999"}) {
    setenv("TERRACE_TEST_NUMBER", wrong, 1);
    EXPECT_FALSE(number_from_environment("TERRACE_TEST_NUMBER").has_value()) << wrong;
  }
  unsetenv("TERRACE_TEST_NUMBER");
  EXPECT_FALSE(number_from_environment("TERRACE_TEST_NUMBER").has_value());
}

}  // namespace
}  // namespace terrace::service
