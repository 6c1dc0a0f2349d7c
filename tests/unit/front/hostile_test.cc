// SPDX-License-Identifier: Apache-2.0
// Shows that a trainer which writes what it likes where it likes, while the daemon reads it, ends its own session and
// nothing else: a second trainer keeps its lease, its bytes and its service. One process, so that sanitizers see both
// sides. Also that descriptors and tokens that are not ours to take are refused, and that nothing is left open.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <atomic>
#include <iostream>
#include <random>

#include "terrace/client.h"
#include "unit/front/raw_session.h"
#include "unit/front/served_host.h"

namespace terrace::front {
namespace {

constexpr std::uint32_t kSlots = 64;

std::size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

// A hello that leaves the memory to others.
shm::Hello modest() {
  shm::Hello hello;
  hello.guarantee_count = 2;
  hello.guarantees[0] = {.place = shm::kPlaceHost, .bytes = 0};
  hello.guarantees[1] = {.place = shm::kPlaceDevice0, .bytes = 0};
  hello.timeout_ns = 60'000'000'000;
  return hello;
}

class Hostile : public testing::Test {
 protected:
  Hostile() {
    tensor_ = honest_->create({.name = "honest", .bytes = 300 * kKiB}).value();
    lease_ = honest_->acquire(tensor_, {.mode = Mode::kOverwrite}).value();
    std::ranges::fill(lease_->writable_bytes(), std::byte{0x5A});
  }
  // Nobody else's doing has touched the honest one's lease and bytes, and it is served.
  void TearDown() override {
    ASSERT_TRUE(host_.comes_to(1));
    const auto is_ours = [](std::byte byte) { return byte == std::byte{0x5A}; };
    EXPECT_TRUE(std::ranges::all_of(lease_->bytes(), is_ours));
    EXPECT_TRUE(lease_->release().has_value());
    const auto other = honest_->create({.name = "another", .bytes = 8 * kMiB});
    ASSERT_TRUE(other.has_value()) << other.error().message;
    EXPECT_TRUE(honest_->acquire(*other, {.mode = Mode::kWrite}).has_value());
    const auto again = honest_->acquire(tensor_);
    ASSERT_TRUE(again.has_value()) << again.error().message;
    EXPECT_TRUE(std::ranges::all_of(again->bytes(), is_ours));
  }

  ServedHost host_{kSlots};
  std::optional<Client> honest_ = Client::connect({.socket = host_.socket(), .local_world_size = 2}).value();
  Tensor tensor_;
  std::optional<Lease> lease_;
};

// Writes into a region, as fast as it can, what looks like requests or like nothing.
class Scribbler {
 public:
  Scribbler(const RawSession& session, std::uint64_t seed) : session_(session), random_(seed) {}

  void scribble() {
    const shm::RegionView& region = session_.region();
    switch (random_() % 16) {
      case 0:
        region.arena[random_() % (64 * kKiB)] = static_cast<std::byte>(random_());
        break;
      case 1:
        region.table[random_() % kSlots].word.store(random_() % 4 == 0 ? random_() : word());
        break;
      case 2:
        region.log_index(static_cast<std::uint32_t>(random_() % shm::kLogCount)).tail.fetch_add(random_() % 2000);
        break;
      case 3:
        region.log_entries(static_cast<std::uint32_t>(random_() % shm::kLogCount))[random_() % shm::kLogEntries].slot =
            static_cast<std::uint32_t>(random_() % (2 * kSlots));
        break;
      case 4:
        scribble_field();
        break;
      case 5:
        if (random_() % 4096 == 0) region.submission_index->tail.store(static_cast<std::uint32_t>(random_()));
        if (random_() % 4096 == 0) region.completion_index->head.store(static_cast<std::uint32_t>(random_()));
        region.completion_index->waiters.store(static_cast<std::uint32_t>(random_()));
        region.submission_index->polled.store(static_cast<std::uint32_t>(random_()));
        break;
      default:
        submit();
    }
    // Answers are not read, but there is always room for them.
    region.completion_index->head.store(region.completion_index->tail.load());
  }

 private:
  std::uint64_t word() {
    return shm::Word{.state = static_cast<shm::State>(random_() % 4),
                     .dirty = random_() % 2 == 0,
                     .wanted = random_() % 2 == 0,
                     .lent = random_() % 4 == 0,
                     .turn = random_() % 2 == 0,
                     .readers = static_cast<std::uint32_t>(random_() % 2),
                     .writers = static_cast<std::uint32_t>(random_() % 2),
                     .incarnation = static_cast<std::uint32_t>(random_() % 3)}
        .packed();
  }
  // Of an entry that the daemon may be reading.
  void scribble_field() {
    auto* const entry = reinterpret_cast<std::uint64_t*>(&session_.region().submissions[random_() % shm::kRingEntries]);
    std::atomic_ref(entry[random_() % 8]).store(random_() % 2 == 0 ? random_() : random_() % 16);
  }
  void submit() {
    const shm::RegionView& region = session_.region();
    const std::uint32_t tail = region.submission_index->tail.load();
    if (tail - region.submission_index->head.load() >= shm::kRingEntries / 2) return;
    shm::Submission submission{.id = random_(),
                               .operation = static_cast<shm::Operation>(random_() % 12),
                               .mode = static_cast<std::uint32_t>(random_() % 4),
                               .place = static_cast<std::uint32_t>(random_() % 3),
                               .count = static_cast<std::uint32_t>(random_() % 4),
                               .block_offset = random_() % (64 * kKiB),
                               .block_bytes = 2048,
                               .timeout_ns = random_() % 1'000'000,
                               .value = random_() % 4,
                               .flags = random_() % 2};
    if (submission.operation == shm::Operation::kCreate) create(submission);
    std::memcpy(static_cast<void*>(&region.submissions[tail % shm::kRingEntries]), &submission, sizeof submission);
    region.submission_index->tail.store(tail + 1);
  }
  void create(const shm::Submission& submission) {
    shm::CreateRecord record{};
    record.bytes = 1 + random_() % (300 * kKiB);
    record.dtype = static_cast<std::uint32_t>(DType::kUint8);
    record.name = {static_cast<char>('a' + random_() % 26), static_cast<char>('a' + random_() % 26)};
    std::memcpy(session_.region().arena.data() + submission.block_offset, &record, sizeof record);
  }

  const RawSession& session_;
  std::mt19937_64 random_;
};

// Case 14 of the survival table. `ring()` is what makes the daemon read.
TEST_F(Hostile, RingsAndTableRewrittenAMillionTimesWhileTheyAreRead) {
  const std::uint64_t seed = std::random_device{}();
  std::cout << "seed " << seed << '\n';
  constexpr std::uint64_t kRewrites = 1'000'000;
  std::uint64_t sessions = 0;
  std::uint64_t ended = 0;
  std::atomic<std::uint64_t> rewritten = 0;
  while (rewritten < kRewrites) {
    RawSession session(host_.socket());
    ASSERT_TRUE(session.greet(modest()));
    std::atomic<bool> over = false;
    std::jthread hostile([&, scribbler = Scribbler(session, seed + sessions)]() mutable {
      while (!over && rewritten.fetch_add(1) < kRewrites) scribbler.scribble();
    });
    // The daemon is kept reading, until it has had enough of this one.
    while (!over) {
      session.ring();
      if (rewritten >= kRewrites) over = true;
      if (!session.has_packet()) continue;
      const auto packet = session.receive();  // segments come too
      over = over || !packet || packet->header.type == shm::MessageType::kRefused;
      ended += packet && packet->header.type == shm::MessageType::kRefused ? 1 : 0;
    }
    ++sessions;
  }
  std::cout << sessions << " sessions, of which " << ended << " were ended by the daemon\n";
}

TEST_F(Hostile, HeadsAndTailsThatCannotBeEndTheSession) {
  std::mt19937_64 random(20261121);
  for (int round = 0; round < 50; ++round) {
    RawSession session(host_.socket());
    ASSERT_TRUE(session.greet(modest()));
    const auto beyond = static_cast<std::uint32_t>(shm::kRingEntries + 1 + random() % (UINT32_MAX - shm::kRingEntries));
    if (round % 2 == 0) {
      session.region().submission_index->tail.store(beyond);
    } else {
      session.region().completion_index->head.store(0u - beyond);
      session.region().submissions[0] = {.id = 1, .operation = shm::Operation::kMarkStep, .block_bytes = 512};
      session.region().submission_index->tail.store(1);
    }
    session.ring();
    const auto words = session.last_words();
    ASSERT_TRUE(words.has_value());
    EXPECT_EQ(words->code, static_cast<std::uint32_t>(ErrorCode::kInvalidArgument)) << words->message.data();
  }
}

// Case 15.
TEST_F(Hostile, OffsetsAndLengthsThatOverflowAreInvalidArguments) {
  RawSession session(host_.socket());
  ASSERT_TRUE(session.greet(modest()));
  constexpr std::uint64_t kMax = UINT64_MAX;
  const std::vector<std::pair<std::uint64_t, std::uint64_t>> blocks = {{kMax, 1},
                                                                       {kMax, kMax},
                                                                       {0, kMax},
                                                                       {1, kMax},
                                                                       {shm::kArenaBytes, 512},
                                                                       {shm::kArenaBytes - 511, 512},
                                                                       {512, kMax - 511},
                                                                       {kMax - 511, 512},
                                                                       {kMax - 510, 512},
                                                                       {1ull << 63, 1ull << 63},
                                                                       {0, 511},
                                                                       {0, 0}};
  std::uint32_t tail = 0;
  for (const auto& [offset, bytes] : blocks) {
    for (const auto operation : {shm::Operation::kDelete, shm::Operation::kCreate, shm::Operation::kMarkStep}) {
      session.region().submissions[tail % shm::kRingEntries] = {
          .id = tail, .operation = operation, .count = 1, .block_offset = offset, .block_bytes = bytes};
      session.region().submission_index->tail.store(++tail);
      session.ring();
      while (session.region().completion_index->tail.load() != tail) ASSERT_FALSE(session.has_packet()) << "it ended";
      const shm::Completion& completion = session.region().completions[(tail - 1) % shm::kRingEntries];
      EXPECT_EQ(completion.id, tail - 1);
      EXPECT_EQ(completion.code, static_cast<std::uint32_t>(ErrorCode::kInvalidArgument)) << offset << ", " << bytes;
      session.region().completion_index->head.store(tail);
    }
  }
}

// Case 13: no message to the daemon brings any; whatever comes along is closed, and what came is judged without it.
TEST_F(Hostile, DescriptorsOfAnyKindAreClosed) {
  const Fd unsealed(::memfd_create("unsealed", MFD_CLOEXEC));
  const Fd event(::eventfd(0, EFD_CLOEXEC));
  const Fd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const Fd folder(::open("/", O_PATH | O_CLOEXEC));
  std::vector<int> many(64, null.get());
  const std::vector<std::vector<int>> sets = {{unsealed.get()}, {event.get(), null.get()}, {folder.get()}, many};
  ASSERT_TRUE(host_.comes_to(1));
  const std::size_t before = open_descriptors();
  for (int round = 0; round < 20; ++round) {
    for (const std::vector<int>& set : sets) {
      RawSession greeting(host_.socket());
      shm::Hello hello = modest();
      ASSERT_TRUE(greeting.send(hello, set));
      auto answer = greeting.receive();
      ASSERT_TRUE(answer && greeting.enter(std::move(*answer))) << "they are no part of a greeting";
      shm::SegmentMessage retired;
      retired.header.type = shm::MessageType::kRetired;
      ASSERT_TRUE(greeting.send(retired, set));
      EXPECT_TRUE(greeting.last_words().has_value()) << "nobody asked about a segment";
      const RawSession garbage(host_.socket());
      ASSERT_TRUE(garbage.send_bytes(std::as_bytes(std::span(hello.label)), set));
      EXPECT_TRUE(garbage.last_words().has_value());
    }
  }
  ASSERT_TRUE(host_.comes_to(1));
  // One that was about to be closed may have been counted before; each round that leaves one is twenty more.
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (open_descriptors() > before && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
  EXPECT_LE(open_descriptors(), before);
}

// Case 17: forged, and replayed.
TEST_F(Hostile, ForgedAndReplayedTokensAreNoSession) {
  RawSession session(host_.socket());
  ASSERT_TRUE(session.greet(modest()));
  shm::Resume right;
  right.session = session.welcome().session;
  right.token = session.welcome().token;
  right.epoch = session.region().header->epoch.load();
  std::vector<shm::Resume> forged(4, right);
  forged[0].token[15] ^= 1;
  forged[1].token = {};
  forged[2].session += 1;
  forged[3].session -= 1;  // the honest one's, with our token
  for (const shm::Resume& resume : forged) {
    const RawSession thief(host_.socket());
    ASSERT_TRUE(thief.send(resume));
    const auto words = thief.last_words();
    ASSERT_TRUE(words.has_value());
    EXPECT_EQ(words->code, static_cast<std::uint32_t>(ErrorCode::kNotFound));
  }
  const RawSession twin(host_.socket());
  ASSERT_TRUE(twin.send(right));
  const auto held = twin.last_words();
  ASSERT_TRUE(held.has_value());
  EXPECT_EQ(held->code, static_cast<std::uint32_t>(ErrorCode::kUnavailable)) << "somebody has it";
  EXPECT_STREQ(held->message.data(), "the session's former connection is not closed yet");
  EXPECT_TRUE(host_.comes_to(2)) << "who has it goes on";
  ASSERT_TRUE(session.send(shm::Bye{}));
  ASSERT_TRUE(host_.comes_to(1));
  const RawSession late(host_.socket());
  ASSERT_TRUE(late.send(right));
  const auto gone = late.last_words();
  ASSERT_TRUE(gone.has_value());
  EXPECT_EQ(gone->code, static_cast<std::uint32_t>(ErrorCode::kNotFound)) << "a session that has ended";
}

TEST_F(Hostile, ALabelIsWhatPeopleCanRead) {
  RawSession session(host_.socket());
  shm::Hello hello = modest();
  hello.label.fill('\xFF');
  std::ranges::copy(std::string_view("rank 3\x1B[2J\n"), hello.label.begin());
  ASSERT_TRUE(session.greet(hello));
  EXPECT_EQ(host_.status().sessions.at(1).label, "rank 3?[2J?" + std::string(53, '?'));
}

}  // namespace
}  // namespace terrace::front
