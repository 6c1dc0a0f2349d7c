// SPDX-License-Identifier: Apache-2.0
// Shows shares between processes on a real daemon: held once, mapped read-only by who reads, torn when a writer is
// killed, and kept over the daemon's death.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <thread>

#include "e2e/terraced.h"

namespace terrace::e2e {
namespace {

using ::testing::HasSubstr;
using Use = ShareOptions::Use;

constexpr const char* kName = "weights";

ConnectOptions part(const std::string& socket, Use use) {
  ConnectOptions options;
  options.socket = socket;
  options.share = ShareOptions{kName, use};
  if (use == Use::kCreate) options.guarantees = {{Place::host(), 4 * kMiB}, {Place::device(0), 2 * kMiB}};
  return options;
}

Client open(const Terraced& terraced, Use use) { return terraced.connect(part(terraced.data_socket(), use)); }

Tensor find(Client& client, const std::string& name) {
  const std::array names{name};
  Result<std::vector<Tensor>> found = client.find(names);
  EXPECT_TRUE(found.has_value()) << found.error().message;
  return found ? found->front() : Tensor();
}

void overwrite(Client& client, const Tensor& tensor, std::uint64_t version, Place place = Place::host()) {
  Result<Lease> lease = client.acquire(tensor, {.place = place, .mode = Mode::kOverwrite});
  ASSERT_TRUE(lease.has_value()) << lease.error().message;
  fill(lease->writable_bytes(), tensor.handle(), version);
}

bool holds(Client& client, const Tensor& tensor, std::uint64_t version, Place place = Place::host()) {
  const Result<Lease> lease = client.acquire(tensor, {.place = place});
  if (!lease) std::printf("%s\n", lease.error().message.c_str());
  return lease && first_difference(lease->bytes(), tensor.handle(), version) == lease->bytes().size();
}

// What a child of the test says to it, a byte at a time.
struct Pipe {
  Pipe() { EXPECT_EQ(::pipe(ends.data()), 0); }
  ~Pipe() {
    ::close(ends[0]);
    ::close(ends[1]);
  }
  bool say() const { return ::write(ends[1], "x", 1) == 1; }
  bool hear() const {
    char said = 0;
    return ::read(ends[0], &said, 1) == 1;
  }
  std::array<int, 2> ends{};
};

TEST(Shares, AreReadByOtherProcessesAndHeldOnce) {
  const Terraced terraced;
  Client writer = open(terraced, Use::kCreate);
  const Result<Tensor> layer = writer.create({.name = "layer", .dtype = DType::kFloat32, .shape = {3, 1000, 100}});
  ASSERT_TRUE(layer.has_value()) << layer.error().message;
  overwrite(writer, *layer, 1);
  std::array<std::unique_ptr<Process>, 2> readers;
  for (auto& reader : readers)
    reader = std::make_unique<Process>([&] {
      Result<Client> client = Client::connect(part(terraced.data_socket(), Use::kRead));
      if (!client) return 1;
      const Tensor found = find(*client, "layer");
      if (found.shape() != layer->shape() || found.dtype() != layer->dtype()) return 2;
      for (int i = 0; i < 200; ++i)
        if (!holds(*client, found, 1, i % 2 == 0 ? Place::host() : Place::device(0))) return 3;
      const Result<Lease> denied = client->acquire(found, {.mode = Mode::kWrite});
      return !denied && denied.error().code == ErrorCode::kPermissionDenied ? 0 : 4;
    });
  for (auto& reader : readers) EXPECT_EQ(reader->wait(), 0) << terraced.log();
  EXPECT_EQ(terraced.status()["tiers"].back()["used_bytes"], (1'200'000 + 4095) / 4096 * 4096);
  EXPECT_TRUE(terraced.serves_on());
}

TEST(Shares, AreMappedReadOnlyByWhoReads) {
  const Terraced terraced;
  Client writer = open(terraced, Use::kCreate);
  const Result<Tensor> layer = writer.create({.name = "layer", .bytes = kMiB});
  ASSERT_TRUE(layer.has_value());
  overwrite(writer, *layer, 1);
  Process scribbler([&] {
    Result<Client> client = Client::connect(part(terraced.data_socket(), Use::kRead));
    if (!client) return 1;
    const Result<Lease> lease = client->acquire(find(*client, "layer"), {.writable_view = true});
    if (!lease) return 2;
    std::signal(SIGSEGV, [](int) { ::_exit(42); });
    *const_cast<volatile std::byte*>(lease->bytes().data()) = std::byte{7};
    return 3;
  });
  EXPECT_EQ(scribbler.wait(), 42);
  EXPECT_TRUE(holds(writer, *layer, 1));
}

TEST(Shares, OutliveWhoCreatedThemAndTellOfATornTensor) {
  const Terraced terraced;
  const Pipe ready;
  Process creator([&] {
    Result<Client> client = Client::connect(part(terraced.data_socket(), Use::kCreate));
    if (!client) return 1;
    const Result<Tensor> whole = client->create({.name = "whole", .bytes = kMiB});
    const Result<Tensor> torn = client->create({.name = "torn", .bytes = kMiB});
    if (!whole || !torn) return 2;
    overwrite(*client, *whole, 1);
    overwrite(*client, *torn, 1);
    const Result<Lease> held = client->acquire(*torn, {.mode = Mode::kWrite});
    if (!held || !ready.say()) return 3;
    ::pause();
    return 4;
  });
  ASSERT_TRUE(ready.hear());
  Client heir = open(terraced, Use::kWrite);
  const Tensor whole = find(heir, "whole");
  const Tensor torn = find(heir, "torn");
  const Result<Lease> read = heir.acquire(whole);
  ASSERT_TRUE(read.has_value()) << read.error().message;
  creator.kill();
  EXPECT_EQ(creator.wait(), 200 + SIGKILL);
  Result<Lease> refused = heir.acquire(torn);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kFailedPrecondition);
  EXPECT_THAT(refused.error().message, HasSubstr("torn"));
  EXPECT_EQ(first_difference(read->bytes(), whole.handle(), 1), read->bytes().size()) << "its lease stands";
  overwrite(heir, torn, 2);
  EXPECT_TRUE(holds(heir, torn, 2));
  EXPECT_TRUE(holds(heir, whole, 1));
}

TEST(Shares, EndWithTheirLastSession) {
  const Terraced terraced;
  {
    Client creator = open(terraced, Use::kCreate);
    const Result<Tensor> layer = creator.create({.name = "layer", .bytes = kMiB});
    ASSERT_TRUE(layer.has_value());
    overwrite(creator, *layer, 1);
    const Client reader = open(terraced, Use::kRead);
    creator.close();
    EXPECT_EQ(Client::connect(part(terraced.data_socket(), Use::kCreate)).error().code, ErrorCode::kAlreadyExists);
  }
  EXPECT_TRUE(eventually([&] {
    const nlohmann::json status = terraced.status();
    return status["sessions"].empty() && status["tiers"].back()["used_bytes"] == 0;
  })) << terraced.status().dump(2);
  EXPECT_EQ(Client::connect(part(terraced.data_socket(), Use::kRead)).error().code, ErrorCode::kNotFound);
  EXPECT_TRUE(terraced.serves_on());
}

TEST(Shares, AreNoneToAnotherUser) {
  if (::getuid() != 0) GTEST_SKIP() << "only root can be another user";
  constexpr uid_t kNobody = 65534;
  const Terraced terraced({.any_uid = true});
  const std::filesystem::path socket = terraced.data_socket();
  std::filesystem::permissions(socket.parent_path(), std::filesystem::perms(0755));
  Client creator = open(terraced, Use::kCreate);
  Process thief([&] {
    std::filesystem::current_path(socket.parent_path());  // the folders above may be closed to it
    if (::setgid(kNobody) != 0 || ::setuid(kNobody) != 0) return 2;
    const auto opened = Client::connect(part(socket.filename(), Use::kRead));
    return !opened && opened.error().code == ErrorCode::kNotFound ? 0 : 3;
  });
  EXPECT_EQ(thief.wait(), 0) << terraced.log();
}

// One writes version after version, others see whole ones; the daemon is killed again and again.
TEST(Shares, GoOnOverTheDaemonsDeaths) {
  constexpr std::uint64_t kVersions = 60;
  const Terraced terraced({.supervised = true});
  Client writer = open(terraced, Use::kCreate);
  const Result<Tensor> layer = writer.create({.name = "layer", .bytes = kMiB / 2});
  ASSERT_TRUE(layer.has_value()) << layer.error().message;
  overwrite(writer, *layer, 1);
  const Pipe ready;
  std::array<std::unique_ptr<Process>, 2> readers;
  for (auto& reader : readers)
    reader = std::make_unique<Process>([&] {
      Result<Client> client = Client::connect(part(terraced.data_socket(), Use::kRead));
      if (!client) return 1;
      const Tensor found = find(*client, "layer");
      if (!ready.say()) return 4;
      for (std::uint64_t newest = 0; newest < kVersions;) {
        const Result<Lease> lease = client->acquire(found);
        if (!lease) {
          std::printf("%s\n", lease.error().message.c_str());
          return 2;
        }
        std::uint64_t version = newest == 0 ? 1 : newest;
        while (version <= kVersions && first_difference(lease->bytes(), found.handle(), version) != found.bytes())
          ++version;
        if (version > kVersions) return 3;  // of no version, or of an older one than before
        newest = version;
      }
      return 0;
    });
  ASSERT_TRUE(ready.hear() && ready.hear());
  for (std::uint64_t version = 2; version <= kVersions; ++version) {
    const std::uint64_t reconnects = writer.reconnects();
    overwrite(writer, *layer, version);
    if (version % 20 == 10) {
      ASSERT_TRUE(terraced.replace(SIGKILL)) << terraced.log();
      ASSERT_TRUE(eventually([&] { return writer.reconnects() > reconnects; }));
    }
  }
  for (auto& reader : readers) EXPECT_EQ(reader->wait(), 0) << "3: a version that was never whole\n" << terraced.log();
}

}  // namespace
}  // namespace terrace::e2e
