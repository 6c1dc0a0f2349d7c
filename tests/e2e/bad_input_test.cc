// SPDX-License-Identifier: Apache-2.0
// Shows that bad input gets a clear error, and that the daemon serves on: through the library, past it through the
// rings, and as garbage on the data socket.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <random>

#include "e2e/raw_session.h"
#include "e2e/terraced.h"

namespace terrace::e2e {
namespace {

using client::DataSocket;
using testing::HasSubstr;
using namespace std::chrono_literals;

class BadInput : public testing::Test {
 protected:
  // Every test ends with this: nothing of it may have hurt.
  void TearDown() override {
    EXPECT_TRUE(terraced_.serves_on()) << terraced_.log();
    EXPECT_TRUE(eventually([&] { return terraced_.status()["sessions"].empty(); }));
  }
  Terraced terraced_;
};

template <typename T>
ErrorCode code_of(const Result<T>& result) {
  EXPECT_FALSE(result.has_value());
  if (result.has_value()) return ErrorCode::kCancelled;
  EXPECT_FALSE(result.error().message.empty());
  return result.error().code;
}

TEST_F(BadInput, NamesReused) {
  Client client = terraced_.connect();
  ASSERT_TRUE(client.create({.name = "weights", .bytes = 8}).has_value());
  const Result<Tensor> again = client.create({.name = "weights", .bytes = 8});
  EXPECT_EQ(code_of(again), ErrorCode::kAlreadyExists);
  EXPECT_THAT(again.error().message, HasSubstr("weights"));
  const std::vector<TensorSpec> twins = {{.name = "twin", .bytes = 8}, {.name = "twin", .bytes = 8}};
  EXPECT_EQ(code_of(client.create(twins)), ErrorCode::kAlreadyExists);
  EXPECT_TRUE(client.create({.name = "twin", .bytes = 8}).has_value()) << "all or none: none";
  Client other = terraced_.connect();
  EXPECT_TRUE(other.create({.name = "weights", .bytes = 8}).has_value()) << "names are the session's own";
}

TEST_F(BadInput, SizesBeyondCapacity) {
  Client client = terraced_.connect();
  const Result<Tensor> large = client.create({.name = "large", .bytes = 65 * kMiB});
  EXPECT_EQ(code_of(large), ErrorCode::kResourceExhausted);
  EXPECT_THAT(large.error().message, HasSubstr("large"));
  const std::vector<TensorSpec> both = {{.name = "a", .bytes = 16 * kMiB},
                                        {.name = "b", .bytes = 16 * kMiB},
                                        {.name = "c", .bytes = 16 * kMiB},
                                        {.name = "d", .bytes = 16 * kMiB},
                                        {.name = "e", .bytes = kMiB}};
  EXPECT_EQ(code_of(client.create(both)), ErrorCode::kResourceExhausted);
  EXPECT_TRUE(client.create({.name = "a", .bytes = 16 * kMiB}).has_value());
}

TEST_F(BadInput, TensorsLargerThanTheirPlace) {
  Client client = terraced_.connect();
  const Result<Tensor> nowhere = client.create({.name = "nowhere", .bytes = 16 * kMiB + 1});
  EXPECT_EQ(code_of(nowhere), ErrorCode::kResourceExhausted) << "at once, not when it is first leased";
  EXPECT_THAT(nowhere.error().message, testing::AllOf(HasSubstr("nowhere"), HasSubstr(std::to_string(16 * kMiB + 1)),
                                                      HasSubstr("'host'"), HasSubstr(std::to_string(16 * kMiB))));
  const Tensor tall = client.create({.name = "tall", .bytes = 12 * kMiB}).value();
  const Result<Lease> lease =
      client.acquire(tall, {.place = Place::device(0), .mode = Mode::kOverwrite, .timeout = 10s});
  EXPECT_EQ(code_of(lease), ErrorCode::kResourceExhausted);
  EXPECT_THAT(lease.error().message, testing::AllOf(HasSubstr(std::to_string(12 * kMiB)),
                                                    HasSubstr(std::to_string(8 * kMiB)), HasSubstr("never")));
  EXPECT_TRUE(client.acquire(tall, {.mode = Mode::kOverwrite}).has_value());
}

TEST_F(BadInput, ReadsOfWhatWasNeverWritten) {
  Client client = terraced_.connect();
  const Tensor tensor = client.create({.name = "blank", .bytes = 8}).value();
  const Result<Lease> read = client.acquire(tensor);
  EXPECT_EQ(code_of(read), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(read.error().message, HasSubstr("blank"));
  const Lease write = client.acquire(tensor, {.mode = Mode::kWrite}).value();
  EXPECT_EQ(write.bytes()[7], std::byte{0});
}

TEST_F(BadInput, ReadsOfWhatIsNotNeeded) {
  Client client = terraced_.connect();
  const Tensor tensor = client.create({.name = "scratch", .bytes = 8}).value();
  ASSERT_TRUE(client.acquire(tensor, {.mode = Mode::kOverwrite})->release().has_value());
  ASSERT_TRUE(client.dont_need({&tensor, 1}).has_value());
  EXPECT_EQ(code_of(client.acquire(tensor)), ErrorCode::kFailedPrecondition);
}

TEST_F(BadInput, OverwritesThatAreGivenUp) {
  Client client = terraced_.connect();
  const std::vector<TensorSpec> specs = {{.name = "a", .bytes = kMiB}, {.name = "b", .bytes = kMiB}};
  const std::vector<Tensor> set = client.create(specs).value();
  const auto overwrite = [&](std::uint64_t version, bool whole) {
    std::vector<Lease> leases = client.acquire(set, {.mode = Mode::kOverwrite}).value();
    for (Lease& lease : leases) {
      fill(whole ? lease.writable_bytes() : lease.writable_bytes().first(99), lease.tensor().handle(), version);
      EXPECT_TRUE((whole ? lease.release() : lease.abandon()).has_value());
    }
  };
  overwrite(1, true);
  ASSERT_TRUE(client.swap_out(set).has_value());
  overwrite(2, false);
  for (const Tensor& tensor : set) {
    EXPECT_THAT(client.acquire(tensor).error().message, HasSubstr("'" + tensor.name() + "' is torn"));
    EXPECT_EQ(code_of(client.acquire(tensor, {.place = Place::device(0)})), ErrorCode::kFailedPrecondition);
    EXPECT_EQ(code_of(client.swap_out({&tensor, 1})), ErrorCode::kFailedPrecondition);
  }
  overwrite(3, true);
  for (const Tensor& tensor : set)
    EXPECT_EQ(first_difference(client.acquire(tensor)->bytes(), tensor.handle(), 3), kMiB);
}

TEST_F(BadInput, LeasesInTwoPlaces) {
  Client client = terraced_.connect();
  const Tensor tensor = client.create({.name = "t", .bytes = 8}).value();
  const Lease held = client.acquire(tensor, {.mode = Mode::kOverwrite}).value();
  const Result<Lease> elsewhere =
      client.acquire(tensor, {.place = Place::device(0), .mode = Mode::kWrite, .timeout = 10s});
  EXPECT_EQ(code_of(elsewhere), ErrorCode::kFailedPrecondition);
}

TEST_F(BadInput, LeasesReleasedTwice) {
  Client client = terraced_.connect();
  const Tensor tensor = client.create({.name = "t", .bytes = 8}).value();
  Lease first = client.acquire(tensor, {.mode = Mode::kOverwrite}).value();
  const Lease second = client.acquire(tensor, {.mode = Mode::kWrite}).value();
  EXPECT_TRUE(first.release().has_value());
  EXPECT_EQ(code_of(first.release()), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(terraced_.status()["sessions"][0]["leases"], 1);
}

TEST_F(BadInput, TensorsThatWereDestroyed) {
  Client client = terraced_.connect();
  const Tensor tensor = client.create({.name = "t", .bytes = 8}).value();
  ASSERT_TRUE(client.destroy({&tensor, 1}).has_value());
  const Tensor next = client.create({.name = "t", .bytes = 8}).value();
  EXPECT_EQ(code_of(client.acquire(tensor)), ErrorCode::kAborted);
  const Result<void> again = client.destroy({&tensor, 1});
  EXPECT_EQ(code_of(again), ErrorCode::kAborted);
  EXPECT_THAT(again.error().message, HasSubstr("tensor \"t\" was destroyed"))
      << "by its name, though another has it now";
  EXPECT_TRUE(client.acquire(next, {.mode = Mode::kOverwrite}).has_value());
}

TEST_F(BadInput, PlacesThatDoNotExist) {
  Client client = terraced_.connect();
  const Tensor tensor = client.create({.name = "t", .bytes = 8}).value();
  EXPECT_EQ(code_of(client.acquire(tensor, {.place = Place::device(3)})), ErrorCode::kNotFound);
  const Result<void> moved = client.swap_in({&tensor, 1}, Place::device(3));
  EXPECT_THAT(code_of(moved), testing::AnyOf(ErrorCode::kNotFound, ErrorCode::kInvalidArgument));
  const Result<void> pinned = client.pin({&tensor, 1}, Place::from_number(77));
  EXPECT_THAT(code_of(pinned), testing::AnyOf(ErrorCode::kNotFound, ErrorCode::kInvalidArgument));
}

TEST_F(BadInput, GuaranteesBeyondCapacity) {
  const Result<Client> client = Client::connect(
      {.socket = terraced_.data_socket(), .guarantees = {{.place = Place::host(), .bytes = 17 * kMiB}}, .timeout = 1s});
  EXPECT_EQ(code_of(client), ErrorCode::kResourceExhausted);
  const Client holder =
      terraced_.connect({.guarantees = {{.place = Place::host(), .bytes = 12 * kMiB}}, .label = "the holder"});
  const Result<Client> second = Client::connect({.socket = terraced_.data_socket(),
                                                 .guarantees = {{.place = Place::host(), .bytes = 12 * kMiB}},
                                                 .timeout = 300ms});
  EXPECT_EQ(code_of(second), ErrorCode::kResourceExhausted);
  EXPECT_THAT(second.error().message,
              testing::AllOf(HasSubstr("the holder"), HasSubstr("smaller guarantees"), HasSubstr("LOCAL_WORLD_SIZE")));
}

TEST_F(BadInput, RecordsPastTheLibrary) {
  RawSession raw(terraced_.data_socket());
  EXPECT_EQ(code_of(raw.create(record_named("", 8))), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of(raw.create(record_named("zero", 0))), ErrorCode::kInvalidArgument);
  EXPECT_THAT(code_of(raw.create(record_named("all", ~0ull))),
              testing::AnyOf(ErrorCode::kInvalidArgument, ErrorCode::kResourceExhausted));
  shm::CreateRecord unended = record_named("x", 8);
  unended.name.fill('x');
  EXPECT_EQ(code_of(raw.create(unended)), ErrorCode::kInvalidArgument);
  shm::CreateRecord ranks = record_named("ranks", 8);
  ranks.rank = 99;
  EXPECT_EQ(code_of(raw.create(ranks)), ErrorCode::kInvalidArgument);
  shm::CreateRecord dtype = record_named("dtype", 8);
  dtype.dtype = 99;
  EXPECT_EQ(code_of(raw.create(dtype)), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(raw.create(record_named("right", 8)).has_value());
}

TEST_F(BadInput, HandlesOperationsAndModesPastTheLibrary) {
  RawSession raw(terraced_.data_socket());
  const std::uint64_t right = raw.create(record_named("right", 8)).value().front();
  for (const std::uint64_t handle : std::initializer_list<std::uint64_t>{right + 1, right + (1ull << 32), ~0ull, 0}) {
    for (const auto operation : {shm::Operation::kAcquire, shm::Operation::kDelete, shm::Operation::kMove,
                                 shm::Operation::kPin, shm::Operation::kDontNeed}) {
      const auto answer = raw.ask({.operation = operation, .timeout = 10s, .handles = {&handle, 1}});
      EXPECT_THAT(code_of(answer), testing::AnyOf(ErrorCode::kNotFound, ErrorCode::kAborted))
          << handle << ": " << answer.error().message;
    }
  }
  const auto ask = [&](shm::Operation operation, std::uint32_t number, std::uint32_t place) {
    const auto mode = static_cast<shm::Mode>(number);
    return raw.ask(
        {.operation = operation, .place = place, .timeout = 10s, .handles = {&right, 1}, .modes = {&mode, 1}});
  };
  EXPECT_EQ(code_of(ask(static_cast<shm::Operation>(99), 0, 0)), ErrorCode::kUnimplemented);
  EXPECT_EQ(code_of(ask(shm::Operation::kAcquire, 9, 0)), ErrorCode::kInvalidArgument);
  EXPECT_THAT(code_of(ask(shm::Operation::kAcquire, 1, 6)),
              testing::AnyOf(ErrorCode::kNotFound, ErrorCode::kInvalidArgument));
  EXPECT_THAT(code_of(ask(shm::Operation::kAcquire, 1, shm::kPlaceBlock)),
              testing::AnyOf(ErrorCode::kNotFound, ErrorCode::kInvalidArgument));
}

TEST_F(BadInput, RingsThatCannotBe) {
  for (const std::uint32_t tail : {shm::kRingEntries + 1, 0xFFFFFFFFu}) {
    const RawSession raw(terraced_.data_socket());
    raw.region().submission_index->tail = tail;
    raw.ring();
    EXPECT_TRUE(raw.ended());
  }
  RawSession heads(terraced_.data_socket());
  heads.region().completion_index->head = 500;
  heads.region().submissions[0] = {.id = 1, .operation = shm::Operation::kMarkStep, .block_bytes = 512};
  heads.region().submission_index->tail = 1;
  heads.ring();
  EXPECT_TRUE(heads.ended());
}

TEST_F(BadInput, BlocksOutsideTheArena) {
  for (const auto& [offset, bytes] : {std::pair<std::uint64_t, std::uint64_t>{shm::kArenaBytes, 512},
                                      {~0ull, 512},
                                      {0, ~0ull},
                                      {shm::kArenaBytes - 511, 512},
                                      {0, 8}}) {
    const RawSession raw(terraced_.data_socket());
    raw.region().submissions[0] = {
        .id = 1, .operation = shm::Operation::kDelete, .count = 1, .block_offset = offset, .block_bytes = bytes};
    raw.region().submission_index->tail = 1;
    raw.ring();
    // Either it is answered or the session ends: the daemon itself must not mind.
    EXPECT_TRUE(eventually([&] { return raw.region().completion_index->tail == 1 || raw.ended({}); }));
    if (raw.region().completion_index->tail == 1) {
      EXPECT_EQ(raw.region().completions[0].code, static_cast<std::uint32_t>(ErrorCode::kInvalidArgument));
    }
  }
}

TEST_F(BadInput, ARegionFullOfNoise) {
  const std::uint64_t seed = std::random_device{}();
  RecordProperty("seed", std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 8; ++round) {
    const RawSession raw(terraced_.data_socket());
    auto* words = reinterpret_cast<std::uint64_t*>(raw.region().base);
    const std::size_t count = static_cast<std::size_t>(raw.region().arena.data() - raw.region().base) / 8;
    for (std::size_t i = 0; i < count; ++i) words[i] = random();
    raw.region().submission_index->tail = static_cast<std::uint32_t>(random() % shm::kRingEntries);
    raw.ring();
    if (round % 2 == 0) raw.ring();
  }
}

TEST_F(BadInput, AnotherProtocolVersion) {
  const DataSocket socket = DataSocket::connect(terraced_.data_socket(), client::deadline_after(60s)).value();
  shm::Hello hello;
  hello.header.bytes = sizeof hello;
  hello.header.version = 99;
  ASSERT_TRUE(socket.send(hello.header).has_value());
  const Result<client::Message> answer = socket.receive(client::deadline_after(60s));
  ASSERT_TRUE(answer.has_value()) << answer.error().message;
  ASSERT_EQ(answer->header.type, shm::MessageType::kRefused);
  const Error refusal = client::error_of(answer->as<shm::Refused>());
  EXPECT_EQ(refusal.code, ErrorCode::kFailedPrecondition);
  EXPECT_THAT(refusal.message, HasSubstr("99"));
  EXPECT_FALSE(socket.receive(client::deadline_after(60s)).has_value()) << "the socket closes";
}

TEST_F(BadInput, GarbageOnTheDataSocket) {
  std::mt19937_64 random(7);
  for (const std::size_t size : std::initializer_list<std::size_t>{1, 15, 16, 40, 240, 1000, 60'000}) {
    const DataSocket socket = DataSocket::connect(terraced_.data_socket(), client::deadline_after(60s)).value();
    std::vector<std::byte> noise(size);
    for (std::byte& each : noise) each = static_cast<std::byte>(random());
    ASSERT_EQ(::send(socket.get(), noise.data(), noise.size(), MSG_NOSIGNAL), static_cast<ssize_t>(size));
    const Result<client::Message> answer = socket.receive(client::deadline_after(60s));
    if (answer) {
      EXPECT_EQ(answer->header.type, shm::MessageType::kRefused);
      EXPECT_FALSE(client::error_of(answer->as<shm::Refused>()).message.empty());
    }
  }
  // Right messages at the wrong time.
  const DataSocket early = DataSocket::connect(terraced_.data_socket(), client::deadline_after(60s)).value();
  shm::SegmentMessage retired;
  retired.header = {.type = shm::MessageType::kRetired, .bytes = sizeof retired};
  ASSERT_TRUE(early.send(retired.header).has_value());
  const Result<client::Message> answer = early.receive(client::deadline_after(60s));
  EXPECT_TRUE(!answer || answer->header.type == shm::MessageType::kRefused);
}

// Asks, on a fresh connection, that the session go on; what the daemon says to that.
Error resume_refusal(const std::string& path, std::uint32_t session, const std::array<std::uint8_t, 16>& token) {
  const DataSocket socket = DataSocket::connect(path, client::deadline_after(60s)).value();
  shm::Resume resume{.session = session, .token = token, .epoch = 1};
  resume.header.bytes = sizeof resume;
  socket.send(resume.header).value();
  const Result<client::Message> answer = socket.receive(client::deadline_after(60s));
  if (!answer) return answer.error();
  if (answer->header.type != shm::MessageType::kRefused) return {ErrorCode::kInternal, "it was not refused", 0};
  return client::error_of(answer->as<shm::Refused>());
}

TEST_F(BadInput, SessionsResumedWithAWrongToken) {
  const RawSession raw(terraced_.data_socket());
  std::array<std::uint8_t, 16> wrong = raw.token();
  wrong.back() ^= 1;
  for (const auto& [session, token] :
       {std::pair{raw.session(), wrong}, {raw.session(), {}}, {raw.session() + 1, raw.token()}, {0u, raw.token()}}) {
    const Error refusal = resume_refusal(terraced_.data_socket(), session, token);
    EXPECT_EQ(refusal.code, ErrorCode::kNotFound) << refusal.message;
    EXPECT_THAT(refusal.message, HasSubstr("no such session to resume"));
  }
  EXPECT_FALSE(raw.ended(100ms)) << "its own connection stands";
}

TEST(BadTokens, OfAnotherTenantResumeNothing) {
  if (::getuid() != 0) GTEST_SKIP() << "only root can be another user";
  constexpr uid_t kNobody = 65534;
  const Terraced terraced({.any_uid = true});
  const std::filesystem::path socket = terraced.data_socket();
  std::filesystem::permissions(socket.parent_path(), std::filesystem::perms(0755));
  const RawSession raw(terraced.data_socket());
  // It may connect, and shows the right token: the answer is as to a wrong one.
  Process thief([&] {
    std::filesystem::current_path(socket.parent_path());  // the folders above may be closed to it
    if (::setgid(kNobody) != 0 || ::setuid(kNobody) != 0) return 2;
    const Error refusal = resume_refusal(socket.filename(), raw.session(), raw.token());
    if (refusal.code == ErrorCode::kPermissionDenied) return 3;
    return refusal.code == ErrorCode::kNotFound ? 0 : 4;
  });
  EXPECT_EQ(thief.wait(), 0) << "3: it was not admitted at all; 4: it was told something else";
  EXPECT_FALSE(raw.ended(100ms)) << "its owner's connection stands";
  EXPECT_TRUE(terraced.serves_on()) << terraced.log();
}

TEST_F(BadInput, ASecondDaemon) {
  const Terraced::Ended sockets = terraced_.run_second(false, true);
  EXPECT_NE(sockets.status, 0);
  EXPECT_THAT(sockets.said, HasSubstr(".sock"));
  EXPECT_THAT(sockets.said, HasSubstr("another terraced"));
  const Terraced::Ended block = terraced_.run_second(true, false);
  EXPECT_NE(block.status, 0);
  EXPECT_THAT(block.said, HasSubstr(terraced_.block_file()));
}

}  // namespace
}  // namespace terrace::e2e
