// SPDX-License-Identifier: Apache-2.0
// Shows who gets through the gate before gRPC, on a clock of the test's own: whoever greets in time; that what passes
// is what was sent, both ways, however slowly either side takes it; and that neither side's end leaves anything.
#include "front/http2/gate.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <iterator>
#include <random>
#include <string>
#include <utility>

#include "base/check.h"
#include "unit/front/http2/http2_bytes.h"

namespace terrace::front {
namespace {

constexpr std::size_t kIncompleteMax = 1'000'000;

class TestClock final : public Clock {
 public:
  Time now() const override { return time; }
  Time time{1'000'000'000};
};

std::size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

// One end of a connection, as client or as gRPC.
class End {
 public:
  explicit End(Fd socket) : socket_(std::move(socket)) {}
  // How many of them the other side took.
  std::size_t send(std::string_view bytes) const {
    const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    return static_cast<std::size_t>(std::max<ssize_t>(sent, 0));
  }
  std::string receive(std::size_t most = 1 << 20) {
    std::string bytes(most, '\0');
    const ssize_t got = ::recv(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    closed_ = closed_ || got == 0 || (got < 0 && errno != EAGAIN);
    bytes.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    return bytes;
  }
  // Whether the other side has closed; what it sent before is lost.
  bool is_closed() {
    while (!receive().empty()) continue;
    return closed_;
  }
  bool has_seen_the_end() const { return closed_; }
  void close() { socket_.reset(); }

 private:
  Fd socket_;
  bool closed_ = false;
};

class GateTest : public testing::Test {
 protected:
  GateTest() {
    auto gate = Http2Gate::create(clock_, kIncompleteMax, [this](Fd connection, const Peer& peer) -> Result<void> {
      if (refuses_) return fail(ErrorCode::kResourceExhausted, "no room");
      entered_.emplace_back(std::move(connection));
      pids_.push_back(peer.pid);
      return {};
    });
    TERRACE_CHECK(gate.has_value());
    gate_ = std::move(*gate);
  }
  End connect(std::int32_t pid = 1) {
    std::array<int, 2> ends{};
    TERRACE_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) == 0);
    gate_->add(Fd(ends[0]), {.tenant = {}, .pid = pid});
    return End(Fd(ends[1]));
  }
  // Until there is nothing more to do.
  void turn(int turns = 8) {
    for (int count = 0; count < turns; ++count) gate_->turn(std::chrono::milliseconds(0));
  }
  void pass(Duration duration) { clock_.time = clock_.time + duration; }

  TestClock clock_;
  bool refuses_ = false;
  std::vector<End> entered_;
  std::vector<std::int32_t> pids_;
  std::unique_ptr<Http2Gate> gate_;
};

TEST_F(GateTest, LetsInWhoGreetsWithAllThatWasSaid) {
  End client = connect(7);
  EXPECT_EQ(gate_->connections(), 1u);
  turn();
  EXPECT_TRUE(entered_.empty());
  client.send(kPreface + frame(kSettings, 0, 0));
  turn();
  ASSERT_EQ(pids_, std::vector{7});
  EXPECT_EQ(entered_[0].receive(), kPreface + frame(kSettings, 0, 0));
  entered_[0].send("whatever gRPC says");
  turn();
  EXPECT_EQ(client.receive(), "whatever gRPC says");
}

TEST_F(GateTest, ClosesWhoDoesNotGreetInTime) {
  End silent = connect();
  End half = connect();
  half.send(kPreface.substr(0, 12));
  End whole = connect();
  whole.send(kPreface);
  turn();
  pass(Http2Gate::kPatience - std::chrono::nanoseconds(1));
  End late = connect();
  turn();
  EXPECT_EQ(gate_->connections(), 4u);
  pass(std::chrono::nanoseconds(1));
  turn();
  EXPECT_TRUE(silent.is_closed());
  EXPECT_TRUE(half.is_closed());
  EXPECT_FALSE(whole.is_closed());
  EXPECT_FALSE(late.is_closed()) << "each has its own time";
  EXPECT_EQ(gate_->connections(), 2u);
  pass(100 * Http2Gate::kPatience);
  turn();
  EXPECT_TRUE(late.is_closed());
  EXPECT_FALSE(whole.is_closed()) << "who has greeted may be silent";
  EXPECT_EQ(entered_.size(), 1u);
}

TEST_F(GateTest, GarbageNeverReachesGrpc) {
  End client = connect();
  client.send("GET / HTTP/1.1\r\n\r\n");
  turn();
  EXPECT_TRUE(client.is_closed());
  EXPECT_TRUE(entered_.empty());
  EXPECT_EQ(gate_->connections(), 0u);
}

TEST_F(GateTest, WhoPassesABoundIsClosed) {
  End client = connect();
  client.send(kPreface);
  turn();
  client.send(frame_header(0xFFFFFF, kHeaders, kEndsHeaders, 1));
  turn();
  EXPECT_TRUE(client.is_closed());
  ASSERT_EQ(entered_.size(), 1u);
  EXPECT_TRUE(entered_[0].is_closed());
  EXPECT_EQ(gate_->connections(), 0u);
}

TEST_F(GateTest, WhoCannotEnterIsClosed) {
  refuses_ = true;
  End client = connect();
  client.send(kPreface);
  turn();
  EXPECT_TRUE(client.is_closed());
  EXPECT_EQ(gate_->connections(), 0u);
}

TEST_F(GateTest, EveryBytePassesBothWaysHoweverSlowlyItIsTaken) {
  End client = connect();
  client.send(kPreface);
  turn();
  ASSERT_EQ(entered_.size(), 1u);
  ASSERT_EQ(entered_[0].receive(), kPreface);
  std::random_device fresh;
  const std::uint64_t seed = fresh();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  std::string all;
  while (all.size() < (4u << 20)) {
    std::string payload(random() % 40'000, '\0');
    std::ranges::generate(payload, [&] { return static_cast<char>(random()); });
    all += frame(kData, 0, 1, payload);  // of no call, so that it is no message
  }
  for (auto [from, to] : {std::pair{&client, &entered_[0]}, {&entered_[0], &client}}) {
    std::string got;
    for (std::size_t sent = 0; got.size() < all.size();) {
      sent += from->send(std::string_view(all).substr(sent, random() % 300'000));
      turn(static_cast<int>(random() % 3));
      const std::string piece = to->receive(1 + random() % 100'000);
      got += piece;
      ASSERT_FALSE(to->has_seen_the_end());
    }
    EXPECT_TRUE(got == all);
  }
}

TEST_F(GateTest, WhatNobodyTakesIsNotTakenFromTheOther) {
  End client = connect();
  client.send(kPreface);
  turn();
  const std::string piece = frame(kData, 0, 1, std::string(16'000, 'd'));
  std::size_t sent = 0;
  for (int more = 0; more < 10'000; ++more) {
    sent += client.send(piece);
    turn(1);
  }
  EXPECT_LT(sent, 4u << 20) << "the kernel's buffers and a piece";
}

TEST_F(GateTest, ResetsWaitTheirTurn) {
  End client = connect();
  client.send(kPreface);
  const std::string call = frame(kHeaders, kEndsHeaders, 1) + frame(kReset, 0, 1, "1234");
  for (int resets = 0; resets < Http2Inspector::kResetsMax + 3; ++resets) client.send(call);
  client.send(frame(kPing, 0, 0, "12345678"));
  turn();
  const std::size_t at_once = kPreface.size() + Http2Inspector::kResetsMax * call.size();
  ASSERT_EQ(entered_.size(), 1u);
  EXPECT_EQ(entered_[0].receive().size(), at_once);
  for (int late = 0; late < 3; ++late) {
    pass(Http2Inspector::kResetPeriod);
    turn();
    const std::string rest = late == 2 ? frame(kPing, 0, 0, "12345678") : "";
    EXPECT_EQ(entered_[0].receive(), call + rest);
  }
}

TEST_F(GateTest, WhoSendsMostOfWhatIsNotCompleteIsClosed) {
  const auto begin = [](const std::string& length) {
    return kPreface + frame(kHeaders, kEndsHeaders, 1) + frame(kData, 0, 1, std::string("\0", 1) + length);
  };
  const std::string piece = frame(kData, 0, 1, std::string(10'000, 'd'));
  const std::string large("\0\x0F\x42\x40", 4);  // 1,000,000
  const std::string small("\0\0\x27\x10", 4);    // a piece
  End greedy = connect();
  greedy.send(begin(large));
  End modest = connect();
  modest.send(begin(large));
  End quick = connect();
  quick.send(begin(small));
  const auto send_all = [&](End& end, int pieces) {
    for (int count = 0; count < pieces; ++count) {
      end.send(piece);
      turn();
      for (End& each : entered_) each.receive();
    }
  };
  turn();
  send_all(modest, 40);
  send_all(quick, 1);  // complete, and so for the others that follow
  send_all(greedy, 60);
  EXPECT_EQ(gate_->connections(), 3u);
  send_all(greedy, 1);
  EXPECT_TRUE(greedy.is_closed());
  EXPECT_FALSE(modest.is_closed());
  EXPECT_FALSE(quick.is_closed());
  EXPECT_EQ(gate_->connections(), 2u);
  send_all(modest, 59);
  EXPECT_EQ(gate_->connections(), 2u) << "what was counted went with who had sent it";
}

TEST_F(GateTest, TheClientsEndIsGrpcs) {
  End client = connect();
  client.send(kPreface);
  turn();
  client.close();
  turn();
  EXPECT_TRUE(entered_[0].is_closed());
  EXPECT_EQ(gate_->connections(), 0u);
}

TEST_F(GateTest, GrpcsLastWordsReachTheClient) {
  End client = connect();
  client.send(kPreface);
  turn();
  const std::string words(100'000, 'w');
  ASSERT_EQ(entered_[0].send(words), words.size());
  entered_[0].close();
  turn();
  std::string got;
  while (got.size() < words.size()) {
    const std::string piece = client.receive();
    turn();
    ASSERT_FALSE(piece.empty());
    got += piece;
  }
  EXPECT_TRUE(client.is_closed());
  EXPECT_EQ(gate_->connections(), 0u);
}

TEST_F(GateTest, WhoDoesNotTakeTheLastWordsIsClosedInTime) {
  End client = connect();
  client.send(kPreface);
  turn();
  while (entered_[0].send(std::string(100'000, 'w')) != 0) turn(1);
  entered_[0].close();
  turn(100);
  EXPECT_EQ(gate_->connections(), 1u);
  pass(Http2Gate::kPatience);
  turn();
  EXPECT_EQ(gate_->connections(), 0u);
}

TEST_F(GateTest, LeavesNoDescriptorBehind) {
  const std::size_t before = open_descriptors();
  for (int round = 0; round < 100; ++round) {
    End client = connect();
    if (round % 2 == 0) client.send(kPreface);
    turn(2);
    if (round % 3 == 0) entered_.clear();
    turn(2);
  }
  turn();
  entered_.clear();
  EXPECT_EQ(gate_->connections(), 0u);
  EXPECT_EQ(open_descriptors(), before);
}

}  // namespace
}  // namespace terrace::front
