// SPDX-License-Identifier: Apache-2.0
// Shows that bad input gets a clear error, and that the daemon serves on: through the library, past it through the
// rings, and as garbage on the data socket.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <array>
#include <random>
#include <stdexcept>

#include "calls.h"
#include "data_socket.h"
#include "e2e/terraced.h"

namespace terrace::e2e {
namespace {

using client::Calls;
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
  const std::vector<TensorSpec> both = {{.name = "a", .bytes = 40 * kMiB}, {.name = "b", .bytes = 40 * kMiB}};
  EXPECT_EQ(code_of(client.create(both)), ErrorCode::kResourceExhausted);
  EXPECT_TRUE(client.create({.name = "a", .bytes = 40 * kMiB}).has_value());
}

TEST_F(BadInput, TensorsLargerThanTheirPlace) {
  Client client = terraced_.connect();
  const Tensor tensor = client.create({.name = "tall", .bytes = 20 * kMiB}).value();
  const Result<Lease> lease = client.acquire(tensor, {.mode = Mode::kOverwrite, .timeout = 10s});
  EXPECT_EQ(code_of(lease), ErrorCode::kResourceExhausted);
  EXPECT_THAT(lease.error().message, HasSubstr(std::to_string(20 * kMiB)));
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
  EXPECT_THAT(code_of(again), testing::AnyOf(ErrorCode::kAborted, ErrorCode::kNotFound));
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
  EXPECT_THAT(second.error().message, HasSubstr("the holder"));
}

// A session whose ring entries are the test's own, past all that the library checks.
class Raw {
 public:
  explicit Raw(const Terraced& terraced) {
    const auto deadline = client::deadline_after(60s);
    socket_ = DataSocket::connect(terraced.data_socket(), deadline).value();
    shm::Hello hello;
    hello.header.bytes = sizeof hello;
    socket_.send(hello.header).value();
    client::Message answer = socket_.receive(deadline).value();
    if (answer.header.type != shm::MessageType::kWelcome) throw std::runtime_error("not welcome");
    bytes_ = answer.as<shm::Welcome>().region_bytes;
    base_ = static_cast<std::byte*>(
        ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, answer.descriptors[0].get(), 0));
    region_ = shm::open_region(base_, bytes_).value();
    doorbell_ = std::move(answer.descriptors[1]);
    calls_.emplace(region_, doorbell_.get(), [](std::span<const std::uint64_t>, shm::Mode) {});
  }
  ~Raw() { ::munmap(base_, bytes_); }

  // The daemon's answer; also the handles, of a create.
  Result<std::vector<std::uint64_t>> ask(const client::Question& question) {
    const Result<std::shared_ptr<client::Call>> call = calls_->submit(question, client::deadline_after(60s));
    if (!call) return std::unexpected(call.error());
    EXPECT_TRUE(calls_->wait(*call, client::deadline_after(60s))) << "no answer";
    if ((*call)->error) return std::unexpected(*(*call)->error);
    return (*call)->handles;
  }
  Result<std::vector<std::uint64_t>> create(const shm::CreateRecord& record) {
    return ask({.operation = shm::Operation::kCreate, .timeout = 10s, .records = {&record, 1}});
  }
  void ring() const { EXPECT_EQ(::write(doorbell_.get(), "\1\0\0\0\0\0\0\0", 8), 8); }
  // Whether the daemon has ended the session, within `patience`.
  bool ended(std::chrono::nanoseconds patience = 60s) const {
    const Result<client::Message> last = socket_.receive(client::deadline_after(patience));
    if (!last && last.error().code == ErrorCode::kDeadlineExceeded) return false;
    return !last.has_value() || last->header.type == shm::MessageType::kRefused;
  }
  const shm::RegionView& region() const { return region_; }

 private:
  std::byte* base_ = nullptr;
  std::uint64_t bytes_ = 0;
  shm::RegionView region_;
  client::Descriptor doorbell_;
  DataSocket socket_;
  std::optional<Calls> calls_;
};

shm::CreateRecord record_named(const char* name, std::uint64_t bytes) {
  shm::CreateRecord record{};
  record.bytes = bytes;
  record.dtype = static_cast<std::uint32_t>(DType::kUint8);
  record.rank = 1;
  record.shape[0] = static_cast<std::int64_t>(bytes);
  record.strides[0] = 1;
  std::strcpy(record.name.data(), name);
  return record;
}

TEST_F(BadInput, RecordsPastTheLibrary) {
  Raw raw(terraced_);
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
  Raw raw(terraced_);
  const std::uint64_t right = raw.create(record_named("right", 8)).value().front();
  for (const std::uint64_t handle : std::initializer_list<std::uint64_t>{right + 1, right + (1ull << 32), ~0ull, 0}) {
    for (const auto operation : {shm::Operation::kAcquire, shm::Operation::kDelete, shm::Operation::kMove,
                                 shm::Operation::kPin, shm::Operation::kDontNeed}) {
      const auto answer = raw.ask({.operation = operation, .timeout = 10s, .handles = {&handle, 1}});
      EXPECT_THAT(code_of(answer), testing::AnyOf(ErrorCode::kNotFound, ErrorCode::kAborted))
          << handle << ": " << answer.error().message;
    }
  }
  const auto ask = [&](shm::Operation operation, std::uint32_t mode, std::uint32_t place) {
    return raw.ask({.operation = operation,
                    .mode = static_cast<shm::Mode>(mode),
                    .place = place,
                    .timeout = 10s,
                    .handles = {&right, 1}});
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
    const Raw raw(terraced_);
    raw.region().submission_index->tail = tail;
    raw.ring();
    EXPECT_TRUE(raw.ended());
  }
  Raw heads(terraced_);
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
    const Raw raw(terraced_);
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
    const Raw raw(terraced_);
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
  for (const std::size_t size : {1, 15, 16, 40, 240, 1000, 60'000}) {
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
