// SPDX-License-Identifier: Apache-2.0
// Shows that more connections than the daemon takes, on either socket, are shed, whether its own cap is reached or its
// descriptors are; that who is inside goes on meanwhile, and that who comes afterwards is served. And that sessions
// which come and go by the hundred leave nothing.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <fstream>
#include <random>

#include "data_socket.h"
#include "faults/cases.h"

namespace terrace::faults {
namespace {

using namespace std::chrono_literals;
using e2e::eventually;
using e2e::fill;
using e2e::first_difference;
using e2e::kMiB;
using e2e::Process;
using e2e::Terraced;

using client::Descriptor;

// A connection; an empty descriptor if none was to be had.
Descriptor connected(const std::string& path, int type) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  Descriptor socket(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  if (socket.get() < 0 || ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return {};
  const timeval patience{60, 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  return socket;
}

// Whether a gRPC server answers: HTTP/2's greeting (RFC 9113, 3.4) gets a SETTINGS frame (type 4) back.
bool speaks_http2(const std::string& path) {
  constexpr std::string_view kGreeting("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33);
  const Descriptor socket = connected(path, SOCK_STREAM);
  if (socket.get() < 0 || ::send(socket.get(), kGreeting.data(), kGreeting.size(), MSG_NOSIGNAL) != 33) return false;
  std::array<char, 9> frame{};
  return ::recv(socket.get(), frame.data(), frame.size(), MSG_WAITALL) == 9 && frame[3] == 4;
}

// Whether the daemon has closed it, after whatever it said.
bool is_closed(const Descriptor& socket) {
  std::array<char, 4096> said{};
  ssize_t count = 1;
  while (count > 0) count = ::recv(socket.get(), said.data(), said.size(), MSG_DONTWAIT);
  return count == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
}

// A round of a trainer's work; every step succeeds.
void work(Client& client, const Tensor& tensor, std::uint64_t version) {
  {
    const Result<Lease> lease = client.acquire(tensor, {.mode = Mode::kOverwrite});
    ASSERT_TRUE(lease.has_value()) << lease.error().message;
    fill(lease->writable_bytes(), 1, version);
  }
  const Result<void> out = client.swap_out({&tensor, 1});
  ASSERT_TRUE(out.has_value()) << out.error().message;
  const Result<Lease> read = client.acquire(tensor, {.place = Place::device(0)});
  ASSERT_TRUE(read.has_value()) << read.error().message;
  ASSERT_EQ(first_difference(read->bytes(), 1, version), tensor.bytes());
}

std::string grpc_socket(const Terraced& terraced) {
  return (std::filesystem::path(terraced.data_socket()).parent_path() / "terraced.sock").string();
}

// How many connections the test itself can hold, of those that it would like to.
std::size_t possible(std::size_t wanted) {
  rlimit limit{};
  TERRACE_CHECK(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return std::min<std::size_t>(wanted, limit.rlim_cur - 200);
}

// How many descriptors a process's table has room for.
int descriptor_table_of(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  std::string word;
  int size = 0;
  while (status >> word && word != "FDSize:") {
  }
  status >> size;
  return size;
}

class Crowd : public ::testing::Test {
 protected:
  // Connects `count` times to each socket in turn, and holds on; a trainer works meanwhile. How many hold in the end.
  std::size_t flood(const Terraced& terraced, std::size_t count) {
    Client client = terraced.connect();
    const Tensor tensor = client.create({.name = "t", .bytes = kMiB}).value();
    std::vector<Descriptor> crowd;
    for (std::size_t i = 0; i < count && !HasFatalFailure(); ++i) {
      Descriptor one = i % 2 == 0 ? connected(terraced.data_socket(), SOCK_SEQPACKET)
                                  : connected(grpc_socket(terraced), SOCK_STREAM);
      if (one.get() >= 0) crowd.push_back(std::move(one));
      if (i % (count / 10) == 0) work(client, tensor, i + 1);
    }
    EXPECT_EQ(crowd.size(), count);
    work(client, tensor, count + 1);
    return crowd.size() -
           static_cast<std::size_t>(std::ranges::count_if(crowd, [](const Descriptor& one) { return is_closed(one); }));
  }

  void expect_recovered(const Terraced& terraced) {
    ASSERT_TRUE(eventually([&] { return terraced.serves_on(); }));
    EXPECT_TRUE(eventually([&] { return speaks_http2(grpc_socket(terraced)); }));
    EXPECT_TRUE(eventually([&] { return terraced.status()["sessions"].empty(); }));
  }
};

TEST_F(Crowd, BeyondTheCapIsShedOnBothSockets) {
  constexpr std::size_t kCap = 64;
  const Terraced terraced({.limits = "connections_max = 64"});
  const LogOfFailure log(terraced);
  ASSERT_TRUE(speaks_http2(grpc_socket(terraced)));
  const std::size_t count = possible(times(600, 10'000));
  const std::size_t held = flood(terraced, count);
  EXPECT_LE(held, kCap);
  EXPECT_GT(held, 0u);
  expect_recovered(terraced);
  figure(20, std::to_string(count) + " connections on both sockets, " + std::to_string(held) +
                 " of them let in by a cap of " + std::to_string(kCap) + "; all else shed, then served again");
}

TEST_F(Crowd, FindsRoomInTheTableOfDescriptors) {
  const Terraced terraced({.limits = "connections_max = 300"});
  EXPECT_GE(descriptor_table_of(terraced.pid()), 2 * 300) << "to let it grow later stops the reactor for some 20 ms";
}

// A session's connection takes five of them, so that one of these limits leaves none over.
TEST_F(Crowd, FindsRoomInTheTableForAllThatTheLimitAllows) {
  for (std::uint64_t limit = 600; limit < 605; ++limit) {
    const Terraced terraced({.descriptors = limit});
    EXPECT_GT(descriptor_table_of(terraced.pid()), 512) << limit;
  }
}

TEST_F(Crowd, IsToldWhyOnTheDataSocket) {
  const Terraced terraced({.limits = "connections_max = 2"});
  const LogOfFailure log(terraced);
  const Client first = terraced.connect();
  const Client second = terraced.connect();
  const Result<Client> third = Client::connect({.socket = terraced.data_socket()});
  ASSERT_FALSE(third.has_value());
  EXPECT_EQ(third.error().code, ErrorCode::kResourceExhausted);
  EXPECT_NE(third.error().message.find("limits.connections_max"), std::string::npos) << third.error().message;
}

TEST_F(Crowd, ThatTakesTheLastDescriptorIsShed) {
  // Room for the daemon itself and a trainer or two, and a cap that its descriptors are not enough for: it lets in
  // fewer, and keeps what it needs itself.
  const Terraced terraced({.limits = "connections_max = 4096\nsessions_max = 64", .descriptors = 160});
  const LogOfFailure log(terraced);
  const std::size_t count = possible(times(600, 2000));
  const std::size_t held = flood(terraced, count);
  EXPECT_LT(held, 160u);
  expect_recovered(terraced);
  figure(20, std::to_string(count) + " connections on both sockets of a daemon with 160 descriptors: " +
                 std::to_string(held) + " let in, all else shed, then served again");
}

// One life of a trainer: makes, fills, swaps, deletes; ends by itself, by closing, or killed.
int live(const std::string& socket, unsigned seed, const Beacon& lived) {
  std::mt19937 random(seed);
  Result<Client> client = Client::connect({.socket = socket, .local_world_size = 4});
  if (!client) return 1;
  std::vector<TensorSpec> specs;
  for (int i = 0; i < 8; ++i) specs.push_back({.name = "t" + std::to_string(i), .bytes = 1 + random() % (kMiB / 4)});
  const Result<std::vector<Tensor>> tensors = client->create(specs);
  if (!tensors) return 2;
  for (const Tensor& tensor : *tensors) {
    const Result<Lease> lease = client->acquire(
        tensor, {.place = random() % 2 == 0 ? Place::host() : Place::device(0), .mode = Mode::kOverwrite});
    if (!lease) return 3;
    fill(lease->writable_bytes(), tensor.handle(), 1);
  }
  if (!client->swap_out(*tensors)) return 4;
  const Result<Lease> read = client->acquire((*tensors)[0]);
  if (!read || first_difference(read->bytes(), (*tensors)[0].handle(), 1) != (*tensors)[0].bytes()) return 5;
  if (!client->destroy({&(*tensors)[1], 3})) return 6;
  lived.say('x');
  if (seed % 3 == 0) ::pause();  // until it is killed, with a lease
  if (seed % 3 == 1) client->close();
  return 0;
}

TEST(Soak, SessionsThatComeAndGoLeaveNothing) {
  const Terraced terraced({.block_mib = 256});
  const LogOfFailure log(terraced);
  const std::uint64_t lives = times(60, 6000);
  std::uint64_t anonymous = 0;
  std::size_t descriptors = 0;
  for (std::uint64_t life = 0; life < lives && !::testing::Test::HasFailure(); life += 3) {
    std::vector<std::unique_ptr<Process>> trainers;
    const Beacon lived;
    for (unsigned i = 0; i < 3; ++i)
      trainers.push_back(std::make_unique<Process>(
          [&] { return live(terraced.data_socket(), static_cast<unsigned>(life) + i, lived); }));
    for (int i = 0; i < 3; ++i) ASSERT_EQ(lived.hear(), 'x');
    trainers[0]->kill();
    EXPECT_EQ(trainers[0]->wait(), 200 + SIGKILL);
    EXPECT_EQ(trainers[1]->wait(), 0);
    EXPECT_EQ(trainers[2]->wait(), 0);
    if (life / 3 != lives / 9) continue;  // warm by now
    ASSERT_TRUE(eventually([&] { return terraced.status()["sessions"].empty(); }));
    anonymous = memory_of(terraced.pid(), "RssAnon");
    descriptors = descriptors_of(terraced.pid());
  }
  ASSERT_TRUE(eventually([&] { return terraced.status()["sessions"].empty(); }));
  EXPECT_EQ(used_bytes(terraced.status()), 0u);
  EXPECT_TRUE(eventually([&] { return descriptors_of(terraced.pid()) <= descriptors; }))
      << descriptors_of(terraced.pid()) << " descriptors, " << descriptors << " when it was warm";
  const std::uint64_t later = memory_of(terraced.pid(), "RssAnon");
#if !defined(__SANITIZE_ADDRESS__)  // which keeps what was freed
  EXPECT_LT(later, anonymous + 16 * kMiB);
#endif
  figure(33, std::to_string(lives) + " sessions: " + std::to_string(descriptors_of(terraced.pid())) + " descriptors (" +
                 std::to_string(descriptors) + " after a third of them), " + std::to_string(later / 1024) +
                 " KiB of its own memory (" + std::to_string(anonymous / 1024) + "), 0 bytes in extents");
}

}  // namespace
}  // namespace terrace::faults
