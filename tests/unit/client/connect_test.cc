// SPDX-License-Identifier: Apache-2.0
// Shows how a client finds a daemon and greets it, and what it says of one that is not there, refuses, speaks another
// version, or talks nonsense.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "data_socket.h"
#include "unit/client/scripted_daemon.h"

namespace terrace::client {
namespace {

using testing::HasSubstr;

// Connects while `script` plays the daemon.
template <typename Script>
Result<Client> connect(ScriptedDaemon& daemon, Script script) {
  auto connecting = beside([path = daemon.path()] { return Client::connect({.socket = path}); });
  daemon.accept();
  script();
  return connecting.get();
}

TEST(Connect, RefusesALabelThatTheGreetingHasNoRoomFor) {
  const Result<Client> client = Client::connect({.socket = "/nowhere", .label = std::string(64, 'x')});
  ASSERT_FALSE(client.has_value());
  EXPECT_EQ(client.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(client.error().message, "a label of 64 bytes: it has at most 63");
}

TEST(Connect, GreetsAndIsWelcomed) {
  ScriptedDaemon daemon;
  auto connecting = beside([&] {
    return Client::connect({.socket = daemon.path(),
                            .guarantees = {{.place = Place::host(), .bytes = 4096}},
                            .local_world_size = 8,
                            .timeout = std::chrono::seconds(30),
                            .label = std::string(63, 'x')});
  });
  const shm::Hello hello = daemon.accept();
  EXPECT_EQ(hello.header.version, shm::kProtocolVersion);
  EXPECT_EQ(hello.timeout_ns, 30'000'000'000u);
  EXPECT_EQ(hello.local_world_size, 8u);
  ASSERT_EQ(hello.guarantee_count, 1u);
  EXPECT_EQ(hello.guarantees[0].bytes, 4096u);
  EXPECT_EQ(std::string(hello.label.data()), std::string(63, 'x'));
  daemon.welcome();
  Result<Client> client = connecting.get();
  ASSERT_TRUE(client.has_value()) << client.error().message;
  EXPECT_EQ(client->session(), 42u);
  EXPECT_EQ(client->socket(), daemon.path());
  ASSERT_EQ(client->places().size(), 2u);
  EXPECT_EQ(client->places()[0].place, Place::host());
  EXPECT_EQ(client->places()[0].guarantee_bytes, kRangeBytes / 2);
  EXPECT_EQ(client->places()[1].place.name(), "device:0");
  EXPECT_FALSE(client->places()[0].gpu || client->places()[1].gpu);

  client->close();
  client->close();
  const std::vector<std::byte> last = daemon.receive();
  ASSERT_EQ(last.size(), sizeof(shm::Bye));
  EXPECT_TRUE(daemon.receive().empty());
  EXPECT_EQ(client->mark_step().error().code, ErrorCode::kFailedPrecondition);
  EXPECT_EQ(client->session(), 0u);
}

TEST(Connect, TakesTheRanksFromTheEnvironment) {
  ScriptedDaemon daemon;
  ::setenv("LOCAL_WORLD_SIZE", "4", 1);
  auto connecting = beside([&] { return Client::connect({.socket = daemon.path()}); });
  EXPECT_EQ(daemon.accept().local_world_size, 4u);
  daemon.welcome();
  EXPECT_TRUE(connecting.get().has_value());
  ::setenv("LOCAL_WORLD_SIZE", "four", 1);
  const Result<Client> client = Client::connect({.socket = daemon.path()});
  ::unsetenv("LOCAL_WORLD_SIZE");
  ASSERT_FALSE(client.has_value());
  EXPECT_EQ(client.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(client.error().message, HasSubstr("LOCAL_WORLD_SIZE"));
}

TEST(Connect, WithoutADaemonShowsTheCommandThatStartsOne) {
  const Result<Client> client = Client::connect({.socket = "/nonexistent/data.sock"});
  ASSERT_FALSE(client.has_value());
  EXPECT_EQ(client.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(client.error().message, HasSubstr("`terraced`"));
  EXPECT_THAT(client.error().message, HasSubstr("terrace.serve()"));
  EXPECT_THAT(client.error().message, HasSubstr("/nonexistent/data.sock"));
  const Result<Client> long_path = Client::connect({.socket = "/" + std::string(200, 'x')});
  EXPECT_EQ(long_path.error().code, ErrorCode::kInvalidArgument);
}

TEST(Connect, FindsTheSocketByTheEnvironment) {
  const ScriptedDaemon daemon;  // for its folder
  const std::filesystem::path folder = std::filesystem::path(daemon.path()).parent_path();
  std::filesystem::create_directory(folder / "terrace");
  std::filesystem::create_symlink(daemon.path(), folder / "terrace" / "data.sock");
  ::unsetenv("TERRACE_SOCKET");
  ::setenv("XDG_RUNTIME_DIR", folder.c_str(), 1);
  EXPECT_EQ(find_socket(""), (folder / "terrace" / "data.sock").string());
  EXPECT_EQ(find_socket("/given"), "/given");
  ::setenv("TERRACE_SOCKET", "/named", 1);
  EXPECT_EQ(find_socket(""), "/named");
  ::unsetenv("TERRACE_SOCKET");
  ::setenv("XDG_RUNTIME_DIR", "/nonexistent", 1);
  EXPECT_EQ(find_socket(""), "/run/terrace/data.sock");
  ::unsetenv("XDG_RUNTIME_DIR");
}

void refuse_and_hang_up(ScriptedDaemon& daemon) {
  shm::Refused refused;
  refused.header.bytes = sizeof refused;
  refused.code = static_cast<std::uint32_t>(ErrorCode::kResourceExhausted);
  std::strcpy(refused.message.data(), "rank 3 holds 12 GiB");
  daemon.send(&refused, sizeof refused);
  daemon.hang_up();
}

TEST(Connect, PassesARefusalOn) {
  ScriptedDaemon daemon;
  const Result<Client> client = connect(daemon, [&] { refuse_and_hang_up(daemon); });
  ASSERT_FALSE(client.has_value());
  EXPECT_EQ(client.error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(client.error().message, "rank 3 holds 12 GiB");
}

TEST(Connect, PassesARefusalOnThatCameBeforeTheGreetingWasRead) {
  for (const bool greeted : {true, false}) {  // sent, and lost with the connection; or sent to nobody
    ScriptedDaemon daemon;
    auto connecting = beside([path = daemon.path()] { return Client::connect({.socket = path}); });
    daemon.take_connection();
    if (greeted) {
      ASSERT_TRUE(eventually([&] { return daemon.has_message(); }));
    }
    refuse_and_hang_up(daemon);
    const Result<Client> client = connecting.get();
    ASSERT_FALSE(client.has_value());
    EXPECT_EQ(client.error().message, "rank 3 holds 12 GiB");
  }
}

TEST(Connect, NamesBothVersions) {
  ScriptedDaemon daemon;
  const Result<Client> client = connect(daemon, [&] {
    shm::Refused refused;
    refused.header.bytes = sizeof refused;
    refused.header.version = 7;
    daemon.send(&refused, sizeof refused);
  });
  ASSERT_FALSE(client.has_value());
  EXPECT_EQ(client.error().code, ErrorCode::kFailedPrecondition);
  EXPECT_THAT(client.error().message, HasSubstr("version 7"));
  EXPECT_THAT(client.error().message, HasSubstr("version " + std::to_string(shm::kProtocolVersion)));
}

TEST(Connect, DoesNotBelieveNonsense) {
  ScriptedDaemon daemon;
  EXPECT_EQ(connect(daemon, [&] { daemon.send("HTTP/1.1 200 OK", 15); }).error().code, ErrorCode::kInternal);
  EXPECT_EQ(connect(daemon, [&] { daemon.send("x", 1); }).error().code, ErrorCode::kInternal);
  EXPECT_EQ(connect(daemon,
                    [&] {
                      shm::Bye bye;
                      bye.header.bytes = sizeof bye;
                      daemon.send(&bye, sizeof bye);
                    })
                .error()
                .code,
            ErrorCode::kInternal);
  EXPECT_EQ(connect(daemon,
                    [&] {
                      shm::Welcome bare;  // without descriptors
                      bare.header.bytes = sizeof bare;
                      daemon.send(&bare, sizeof bare);
                    })
                .error()
                .code,
            ErrorCode::kInternal);
  const Fd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_EQ(connect(daemon,
                    [&] {
                      shm::Welcome odd;  // with others than it should have
                      odd.header.bytes = sizeof odd;
                      odd.region_bytes = 4096;
                      daemon.send(&odd, sizeof odd, {null.get(), null.get()});
                    })
                .error()
                .code,
            ErrorCode::kInternal);
  EXPECT_EQ(connect(daemon, [&] { daemon.hang_up(); }).error().code, ErrorCode::kUnavailable);
}

TEST(Connect, MayBeWaitedForInSlices) {
  ScriptedDaemon daemon;
  std::optional<Pending<Client>> dropped = Client::connect_async({.socket = daemon.path()});
  daemon.accept();
  EXPECT_FALSE(dropped->ready());
  dropped.reset();
  EXPECT_TRUE(daemon.receive().empty()) << "the connection is still open";
  Pending<Client> pending = Client::connect_async({.socket = daemon.path()});
  daemon.accept();
  EXPECT_FALSE(pending.ready(std::chrono::milliseconds(1)));
  daemon.welcome();
  EXPECT_TRUE(pending.ready(std::chrono::seconds(60)));
  Result<Client> client = pending.wait({});
  ASSERT_TRUE(client.has_value()) << client.error().message;
  EXPECT_NE(client->session(), 0u);
  EXPECT_FALSE(pending.wait({}).has_value());
}

TEST(Connect, RefusesAGuaranteeForThePlaceWithoutLeases) {
  const Result<Client> client = Client::connect({.guarantees = {{.place = Place::block(), .bytes = 1}}});
  ASSERT_FALSE(client.has_value());
  EXPECT_EQ(client.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(client.error().message, HasSubstr("a guarantee for block"));
}

TEST(Connect, IsHeardToTheLastWithMessagesUnread) {
  ScriptedDaemon daemon;
  Result<DataSocket> socket = DataSocket::connect(daemon.path(), deadline_after(std::chrono::seconds(60)));
  ASSERT_TRUE(socket.has_value()) << socket.error().message;
  daemon.take_connection();
  daemon.retire_segment(shm::kPlaceHost, 0);
  shm::Bye bye;
  bye.header.bytes = sizeof bye;
  socket->say_last(bye.header);
  socket->reset();
  EXPECT_EQ(daemon.receive().size(), sizeof(shm::Bye));
  EXPECT_TRUE(daemon.receive().empty());
}

TEST(Connect, GivesUpInTime) {
  const ScriptedDaemon daemon;  // listens, and says nothing
  const Result<Client> client = Client::connect({.socket = daemon.path(), .timeout = std::chrono::milliseconds(1)});
  ASSERT_FALSE(client.has_value());
  EXPECT_EQ(client.error().code, ErrorCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace terrace::client
