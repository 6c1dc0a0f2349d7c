// SPDX-License-Identifier: Apache-2.0
// Shows that reactor, engine, mover, tiers and client library work as one: bytes verified after forced trips through
// every tier, with everything in one process, so that sanitizers see both sides.
#include "front/host.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <future>
#include <thread>

#include "base/bytes.h"
#include "bench/contents.h"
#include "terrace/client.h"

namespace terrace::front {
namespace {

// A node of three small tiers, served by a thread, its block file on a real disk beside the build.
class HostTest : public testing::Test {
 protected:
  HostTest() {
    std::string pattern = TERRACE_SCRATCH_DIR "/host-XXXXXX";
    folder_ = mkdtemp(pattern.data());
    std::string sockets = (std::filesystem::temp_directory_path() / "terrace-XXXXXX").string();
    socket_folder_ = mkdtemp(sockets.data());
    config::Config config;
    config.metrics_address.clear();
    config.tiers = {tier(config::TierKind::kDevice, 8 * kMiB), tier(config::TierKind::kMemory, 16 * kMiB),
                    tier(config::TierKind::kBlock, 64 * kMiB)};
    config.tiers[0].device = "emulated";
    config.tiers[2].paths = {folder_ / "block"};
    config.tenants = {{.name = "default", .data_socket = socket_folder_ / "data.sock", .grpc_socket = {}, .uids = {}}};
    auto host = Host::create(config, {.copiers = 2, .node_processors = {}}, {});
    if (!host) throw std::runtime_error(host.error().message);
    host_ = std::move(*host);
    reactor_ = std::jthread([this] { served_ = host_->serve([] {}); });
  }
  ~HostTest() override {
    host_->stop();
    reactor_.join();
    EXPECT_TRUE(served_.has_value());
    host_.reset();
    std::filesystem::remove_all(folder_);
    std::filesystem::remove_all(socket_folder_);
  }

  static config::TierConfig tier(config::TierKind kind, std::uint64_t bytes) {
    config::TierConfig tier;
    tier.kind = kind;
    tier.capacity.bytes = bytes;
    return tier;
  }

  Client connect(std::uint32_t ranks = 1) {
    auto client = Client::connect({.socket = socket_folder_ / "data.sock", .local_world_size = ranks});
    if (!client) throw std::runtime_error(client.error().message);
    return std::move(*client);
  }

  engine::Status status() {
    std::promise<engine::Status> promise;
    host_->gateway().post({.body = engine::GetStatus{}},
                          [&](engine::Reply reply) { promise.set_value(std::get<engine::Status>(*reply.result)); });
    return promise.get_future().get();
  }

  std::filesystem::path folder_;
  std::filesystem::path socket_folder_;
  std::unique_ptr<Host> host_;
  Result<void> served_;
  std::jthread reactor_;
};

TEST_F(HostTest, BytesSurviveEveryTier) {
  Client client = connect();
  std::vector<TensorSpec> specs;
  for (std::uint32_t i = 0; i < 40; ++i)  // 40 MiB and a bit: more than device and memory hold together
    specs.push_back({.name = "t" + std::to_string(i), .bytes = kMiB + i * 777});
  const auto tensors = client.create(specs);
  ASSERT_TRUE(tensors.has_value()) << tensors.error().message;
  for (std::uint32_t i = 0; i < tensors->size(); ++i) {
    const auto lease = client.acquire((*tensors)[i], {.mode = Mode::kOverwrite});
    ASSERT_TRUE(lease.has_value()) << lease.error().message;
    bench::fill(lease->writable_bytes(), i, 0);
  }
  for (std::uint32_t round = 0; round < 3; ++round) {
    for (std::uint32_t i = 0; i < tensors->size(); ++i) {
      const Place place = (i + round) % 2 == 0 ? Place::host() : Place::device(0);
      const auto lease = client.acquire((*tensors)[i], {.place = place, .mode = Mode::kWrite});
      ASSERT_TRUE(lease.has_value()) << lease.error().message;
      ASSERT_TRUE(bench::check(lease->bytes(), i, round)) << "tensor " << i << ", round " << round;
      bench::fill(lease->writable_bytes(), i, round + 1);
    }
  }
  const auto now = status();
  EXPECT_EQ(now.tiers[2].checksum_failures, 0u);
  EXPECT_GT(now.links.size(), 3u);
}

TEST_F(HostTest, ThreadsAndSetsShareASession) {
  Client client = connect();
  constexpr std::uint32_t kThreads = 4;
  constexpr std::uint32_t kEach = 8;
  std::vector<std::jthread> threads;
  std::atomic<int> failures = 0;
  for (std::uint32_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      std::vector<TensorSpec> specs;
      for (std::uint32_t i = 0; i < kEach; ++i)
        specs.push_back({.name = std::to_string(thread) + "." + std::to_string(i), .bytes = 600 * kKiB});
      const auto tensors = client.create(specs);
      if (!tensors) {
        ++failures;
        return;
      }
      for (std::uint32_t round = 0; round < 20; ++round) {
        const std::array set = {(*tensors)[round % kEach], (*tensors)[(round + 3) % kEach]};
        const auto leases = client.acquire(set, {.mode = round < kEach ? Mode::kOverwrite : Mode::kWrite});
        if (!leases) {
          ADD_FAILURE() << leases.error().message;
          ++failures;
          return;
        }
        for (const Lease& lease : *leases) bench::fill(lease.writable_bytes(), thread, round);
      }
    });
  }
  threads.clear();
  EXPECT_EQ(failures, 0);
}

// A thread says by the lease's word alone that it is done, and ThreadSanitizer is to take that for what it is.
TEST_F(HostTest, MemoryGoesFromThreadToThread) {
  Client client = connect();
  const auto tensors = client.create({{{.name = "first", .bytes = 10 * kMiB}, {.name = "second", .bytes = 10 * kMiB}}});
  ASSERT_TRUE(tensors.has_value()) << tensors.error().message;
  std::atomic<int> turn = 0;  // orders nothing else
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < 2; ++thread) {
    threads.emplace_back([&, thread] {
      while (turn.load(std::memory_order_relaxed) != thread) std::this_thread::yield();
      {
        const auto lease = client.acquire((*tensors)[static_cast<std::size_t>(thread)], {.mode = Mode::kOverwrite});
        if (!lease) {
          ADD_FAILURE() << lease.error().message;
        } else {
          bench::fill(lease->writable_bytes(), static_cast<std::uint32_t>(thread), 0);
        }
      }
      turn.store(thread + 1, std::memory_order_relaxed);
    });
  }
  threads.clear();
  for (std::uint32_t i = 0; i < 2; ++i) {
    const auto lease = client.acquire((*tensors)[i], {.mode = Mode::kRead});
    ASSERT_TRUE(lease.has_value()) << lease.error().message;
    EXPECT_TRUE(bench::check(lease->bytes(), i, 0));
  }
}

TEST_F(HostTest, SessionsComeAndGo) {
  for (int round = 0; round < 5; ++round) {
    Client first = connect(2);
    Client second = connect(2);
    for (Client* client : {&first, &second}) {
      const auto tensor = client->create({.name = "same name", .bytes = 3 * kMiB});
      ASSERT_TRUE(tensor.has_value()) << tensor.error().message;
      const auto lease = client->acquire(*tensor, {.mode = Mode::kWrite});
      ASSERT_TRUE(lease.has_value()) << lease.error().message;
      EXPECT_TRUE(std::ranges::all_of(lease->bytes(), [](std::byte byte) { return byte == std::byte{0}; }))
          << "memory that was another session's reads as zeros";
      bench::fill(lease->writable_bytes(), 1, 1);
    }
  }
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!status().sessions.empty() && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
  const auto now = status();
  EXPECT_TRUE(now.sessions.empty());
  for (const auto& tier : now.tiers) EXPECT_EQ(tier.used_bytes, 0u) << tier.name;
}

}  // namespace
}  // namespace terrace::front
