// SPDX-License-Identifier: Apache-2.0
// Shows that a tensor whose pages lie apart is leased at one address: what the daemon stitches is mapped once more,
// side by side, to be read and to be written; who leases first waits for it; and what is no seam is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <string>

#include "unit/client/scripted_daemon.h"

namespace terrace::client {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kSeam = (std::uint64_t{1} << 48) + 40960;
constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kSegment = std::uint64_t{2} << 20;
constexpr shm::Word kThere{.state = shm::State::kResident};

class Seams : public testing::Test {
 protected:
  Seams() : client_(daemon_.open()), tensor_(daemon_.create(client_, "weights", 5 * kPage, 3)) {
    first_ = daemon_.pass_segment(shm::kPlaceHost, 0);
    second_ = daemon_.pass_segment(shm::kPlaceHost, kSegment);
  }
  static shm::StitchMessage seam() {
    shm::StitchMessage message;
    message.header.bytes = sizeof message;
    message.offset = kSeam;
    message.bytes = 5 * kPage;
    message.count = 2;
    message.pieces[0] = {8 * kPage, 2 * kPage};
    message.pieces[1] = {kSegment - kPage, 3 * kPage};  // in both segments
    return message;
  }
  void send(const shm::StitchMessage& message) { daemon_.send(&message, sizeof message); }
  void unstitch() {
    const shm::SegmentMessage message{.header = {.type = shm::MessageType::kUnstitch, .bytes = sizeof message},
                                      .place = shm::kPlaceHost,
                                      .offset = kSeam,
                                      .bytes = 5 * kPage};
    daemon_.send(&message, sizeof message);
  }
  // What the daemon has where the tensor's page lies.
  std::byte& page(std::size_t at) {
    return at < 2 ? first_[(8 + at) * kPage] : at == 2 ? first_[kSegment - kPage] : second_[(at - 3) * kPage];
  }
  // The session ends, and a lease says with what.
  void ends_with(const shm::StitchMessage& message, const std::string& why) {
    SCOPED_TRACE(why);
    send(message);
    daemon_.publish(3, kThere, kSeam);
    const auto refused = client_.acquire(tensor_, {.timeout = std::chrono::seconds(60)});
    ASSERT_FALSE(refused.has_value());
    EXPECT_THAT(refused.error().message, HasSubstr(why));
  }

  ScriptedDaemon daemon_;
  Client client_;
  Tensor tensor_;
  std::byte* first_ = nullptr;
  std::byte* second_ = nullptr;
};

TEST_F(Seams, AreReadAndWrittenAsOneTensor) {
  for (std::size_t at = 0; at < 5; ++at) page(at) = static_cast<std::byte>(10 + at);
  daemon_.publish(3, kThere, kSeam);
  send(seam());
  {
    Result<Lease> lease = client_.acquire(tensor_);
    ASSERT_TRUE(lease.has_value()) << lease.error().message;
    for (std::size_t at = 0; at < 5; ++at) EXPECT_EQ(lease->bytes()[at * kPage], static_cast<std::byte>(10 + at));
  }
  Result<Lease> lease = client_.acquire(tensor_, {.mode = Mode::kWrite});
  ASSERT_TRUE(lease.has_value()) << lease.error().message;
  for (std::size_t at = 0; at < 5; ++at) lease->writable_bytes()[at * kPage] = static_cast<std::byte>(20 + at);
  for (std::size_t at = 0; at < 5; ++at) EXPECT_EQ(page(at), static_cast<std::byte>(20 + at));
}

TEST_F(Seams, AreWaitedFor) {
  daemon_.publish(3, kThere, kSeam);
  auto acquiring = beside([&] { return client_.acquire(tensor_); });
  ASSERT_TRUE(eventually([&] { return daemon_.word(3).readers == 1; }));
  send(seam());
  EXPECT_TRUE(acquiring.get().has_value());
}

TEST_F(Seams, ComeInParts) {
  shm::StitchMessage part = seam();
  part.count = 1;
  daemon_.publish(3, kThere, kSeam);
  send(part);
  auto acquiring = beside([&] { return client_.acquire(tensor_); });
  ASSERT_TRUE(eventually([&] { return daemon_.word(3).readers == 1; }));
  part.at = 2 * kPage;
  part.pieces[0] = part.pieces[1];
  page(4) = std::byte{9};
  send(part);
  const Result<Lease> lease = acquiring.get();
  ASSERT_TRUE(lease.has_value()) << lease.error().message;
  EXPECT_EQ(lease->bytes()[4 * kPage], std::byte{9});
}

TEST_F(Seams, GoWhenTheDaemonSaysSo) {
  daemon_.publish(3, kThere, kSeam);
  send(seam());
  const std::byte* address = client_.acquire(tensor_)->bytes().data();
  daemon_.publish(3, {.state = shm::State::kAbsent}, 0);
  unstitch();
  EXPECT_TRUE(eventually([&] {
    std::array<int, 2> ends{};
    if (::pipe(ends.data()) != 0) return false;
    const bool gone = ::write(ends[1], address, 1) < 0;  // EFAULT
    ::close(ends[0]);
    ::close(ends[1]);
    return gone;
  }));
}

TEST_F(Seams, OfASuccessorAreTheSame) {
  daemon_.publish(3, kThere, kSeam);
  send(seam());
  Result<Lease> lease = client_.acquire(tensor_);
  ASSERT_TRUE(lease.has_value());
  page(0) = std::byte{3};
  daemon_.die();
  daemon_.listen();
  daemon_.accept_resume();
  send(seam());
  daemon_.resume();
  EXPECT_EQ(lease->bytes()[0], std::byte{3});
  EXPECT_TRUE(client_.acquire(tensor_).has_value());
}

TEST_F(Seams, OfMemoryThatIsNotMappedAreRefused) {
  shm::StitchMessage message = seam();
  message.pieces[1].offset = 2 * kSegment;
  ends_with(message, "where no segment is mapped");
}

TEST_F(Seams, ThatAreNoneAreRefused) {
  shm::StitchMessage message = seam();
  message.offset = 0;
  ends_with(message, "that is none");
}

TEST_F(Seams, WhosePartsDoNotFollowAreRefused) {
  shm::StitchMessage message = seam();
  message.at = kPage;
  ends_with(message, "does not follow the one before");
}

TEST_F(Seams, LongerThanTheyAreAreRefused) {
  shm::StitchMessage message = seam();
  message.pieces[1].bytes = 4 * kPage;
  ends_with(message, "is not whole pages of it");
}

}  // namespace
}  // namespace terrace::client
