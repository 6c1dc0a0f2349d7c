// SPDX-License-Identifier: Apache-2.0
// Shows that messages arrive whole, with their descriptors, and that whatever is no message ends the connection
// cleanly.
#include "front/sessions/data_connection.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cstring>

namespace terrace::front {
namespace {

struct Pair {
  Pair() {
    std::array<int, 2> ends{};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()), 0);
    client = Fd(ends[0]);
    daemon.emplace(Fd(ends[1]));
  }
  void client_sends(const void* bytes, std::size_t count) const {
    ASSERT_EQ(send(client.get(), bytes, count, 0), static_cast<ssize_t>(count));
  }
  Fd client;
  std::optional<DataConnection> daemon;
};

TEST(DataConnection, NothingThereIsNoError) {
  Pair pair;
  const auto message = pair.daemon->receive();
  ASSERT_TRUE(message.has_value());
  EXPECT_FALSE(message->has_value());
}

TEST(DataConnection, ReadsAHello) {
  Pair pair;
  shm::Hello hello;
  hello.header.bytes = sizeof hello;
  hello.local_world_size = 8;
  pair.client_sends(&hello, sizeof hello);
  const auto message = pair.daemon->receive();
  ASSERT_TRUE(message.has_value() && message->has_value());
  EXPECT_EQ(std::get<shm::Hello>(**message).local_world_size, 8u);
}

TEST(DataConnection, NamesAnotherVersion) {
  Pair pair;
  shm::Hello hello;
  hello.header.version = 77;
  pair.client_sends(&hello, sizeof hello);
  const auto message = pair.daemon->receive();
  ASSERT_FALSE(message.has_value());
  EXPECT_EQ(message.error().code, ErrorCode::kFailedPrecondition);
  EXPECT_NE(message.error().message.find("77"), std::string::npos);
}

TEST(DataConnection, RefusesGarbage) {
  for (const std::size_t count : {1u, 15u, 16u, 200u, 4000u}) {
    Pair pair;
    const std::vector<char> garbage(count, 'x');
    pair.client_sends(garbage.data(), garbage.size());
    EXPECT_EQ(pair.daemon->receive().error().code, ErrorCode::kInvalidArgument) << count;
  }
  Pair pair;
  shm::Hello hello;
  pair.client_sends(&hello, sizeof hello - 8);
  EXPECT_EQ(pair.daemon->receive().error().code, ErrorCode::kInvalidArgument);
}

TEST(DataConnection, SaysThatThePeerIsGone) {
  Pair pair;
  pair.client.reset();
  EXPECT_EQ(pair.daemon->receive().error().code, ErrorCode::kUnavailable);
}

TEST(DataConnection, PassesDescriptors) {
  Pair pair;
  const Fd event(eventfd(5, EFD_CLOEXEC));
  const std::array descriptors = {event.get()};
  ASSERT_TRUE(pair.daemon->send(shm::SegmentMessage{.header = {.type = shm::MessageType::kSegment}}, descriptors));

  shm::SegmentMessage message;
  iovec vector{&message, sizeof message};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr header{};
  header.msg_iov = &vector;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  ASSERT_EQ(recvmsg(pair.client.get(), &header, MSG_CMSG_CLOEXEC), static_cast<ssize_t>(sizeof message));
  EXPECT_EQ(message.header.bytes, sizeof message);
  int received = -1;
  std::memcpy(&received, CMSG_DATA(CMSG_FIRSTHDR(&header)), sizeof received);
  const Fd same(received);
  std::uint64_t value = 0;
  ASSERT_EQ(read(same.get(), &value, sizeof value), static_cast<ssize_t>(sizeof value));
  EXPECT_EQ(value, 5u);
}

TEST(DataConnection, QueuesWhatTheSocketDoesNotTake) {
  Pair pair;
  const shm::SegmentMessage message{.header = {.type = shm::MessageType::kSegment}};
  std::size_t sent = 0;
  while (!pair.daemon->has_queued()) {
    ASSERT_TRUE(pair.daemon->send(message));
    ASSERT_LT(++sent, 100000u);
  }
  std::size_t received = 0;
  shm::SegmentMessage in;
  while (received < sent) {
    if (recv(pair.client.get(), &in, sizeof in, MSG_DONTWAIT) == static_cast<ssize_t>(sizeof in)) ++received;
    ASSERT_TRUE(pair.daemon->flush());
  }
  EXPECT_FALSE(pair.daemon->has_queued());
}

// Who reads late is not to hear of seams that are gone, and must hear of the end of one that it may have.
TEST(DataConnection, TakesASeamBackThatWasNotSent) {
  Pair pair;
  shm::StitchMessage part;
  part.place = shm::kPlaceHost;
  part.offset = shm::kSeamsBegin;
  std::size_t sent = 0;
  while (!pair.daemon->has_queued()) {  // the last part alone waits
    part.at = sent;
    ASSERT_TRUE(pair.daemon->send(part));
    ASSERT_LT(++sent, 100000u);
  }
  EXPECT_FALSE(pair.daemon->take_back_seam(part.place, part.offset)) << "it was sent in part";
  part.offset += 4096;
  for (const std::uint64_t at : {0U, 1U}) {
    part.at = at;
    ASSERT_TRUE(pair.daemon->send(part));
  }
  EXPECT_FALSE(pair.daemon->take_back_seam(part.place + 1, part.offset)) << "another place's";
  EXPECT_TRUE(pair.daemon->take_back_seam(part.place, part.offset));
  EXPECT_FALSE(pair.daemon->take_back_seam(part.place, part.offset)) << "all of it is gone";
  std::size_t received = 0;
  shm::StitchMessage in;
  while (pair.daemon->has_queued() || received < sent) {
    if (recv(pair.client.get(), &in, sizeof in, MSG_DONTWAIT) == static_cast<ssize_t>(sizeof in)) {
      EXPECT_EQ(in.offset, shm::kSeamsBegin);
      ++received;
    }
    ASSERT_TRUE(pair.daemon->flush());
  }
  EXPECT_EQ(received, sent);
}

TEST(DataConnection, CutsALongRefusal) {
  const shm::Refused refused = refusal({ErrorCode::kInternal, std::string(2000, 'x'), 0});
  EXPECT_EQ(std::strlen(refused.message.data()), refused.message.size() - 1);
}

}  // namespace
}  // namespace terrace::front
