// SPDX-License-Identifier: Apache-2.0
// A Host of two small tiers in memory, served by a thread of this process: for tests that attack it from next door.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "base/bytes.h"
#include "base/check.h"
#include "front/host.h"

namespace terrace::front {

class ServedHost {
 public:
  // Session tables have `slots` slots; requests end within `request_timeout_ms`.
  explicit ServedHost(std::uint32_t slots = 64, std::uint32_t request_timeout_ms = 60'000) {
    std::string pattern = (std::filesystem::temp_directory_path() / "terrace-XXXXXX").string();
    TERRACE_CHECK(mkdtemp(pattern.data()) != nullptr);
    folder_ = pattern;
    config::Config config;
    config.metrics_address.clear();
    config.tiers = {tier(config::TierKind::kDevice, 8 * kMiB), tier(config::TierKind::kMemory, 16 * kMiB)};
    config.tiers[0].device = "emulated";
    config.tenants = {{.name = "default", .data_socket = socket(), .grpc_socket = {}, .uids = {}}};
    config.limits.tensors_per_session_max = slots;
    config.limits.request_timeout_ms = request_timeout_ms;
    auto host = Host::create(config, {.copiers = 1, .node_processors = {}}, {});
    TERRACE_CHECK(host.has_value());
    host_ = std::move(*host);
    reactor_ = std::jthread([this] { TERRACE_CHECK(host_->serve([] {}).has_value()); });
  }
  ServedHost(const ServedHost&) = delete;
  ServedHost& operator=(const ServedHost&) = delete;
  ~ServedHost() {
    host_->stop();
    reactor_.join();
    host_.reset();
    std::filesystem::remove_all(folder_);
  }

  std::string socket() const { return (folder_ / "data.sock").string(); }
  engine::Status status() {
    std::promise<engine::Status> promise;
    host_->gateway().post({.body = engine::GetStatus{}},
                          [&](engine::Reply reply) { promise.set_value(std::get<engine::Status>(*reply.result)); });
    return promise.get_future().get();
  }
  // Whether there are so many sessions within a minute.
  bool comes_to(std::size_t sessions) {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (status().sessions.size() != sessions) {
      if (std::chrono::steady_clock::now() >= limit) return false;
      std::this_thread::yield();
    }
    return true;
  }
  Host& operator*() { return *host_; }

 private:
  static config::TierConfig tier(config::TierKind kind, std::uint64_t bytes) {
    config::TierConfig tier;
    tier.kind = kind;
    tier.capacity.bytes = bytes;
    return tier;
  }

  std::filesystem::path folder_;
  std::unique_ptr<Host> host_;
  std::jthread reactor_;
};

}  // namespace terrace::front
