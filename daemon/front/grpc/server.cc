// SPDX-License-Identifier: Apache-2.0
#include "front/grpc/server.h"

#include <grpc/grpc.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server_posix.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>

#include "front/grpc/admin_service.h"
#include "front/grpc/peers.h"
#include "front/grpc/stream.h"
#include "front/grpc/terrace_service.h"
#include "front/http2/gate.h"

namespace terrace::front {
namespace {

// CreateTensors with the most and longest names fits.
constexpr int kMessageBytesMax = Http2Inspector::kMessageBytesMax;
constexpr int kCallsPerConnectionMax = 1024;
constexpr std::chrono::milliseconds kTurn(60'000);               // the gate is woken for whatever comes
constexpr Duration kLastWords = std::chrono::milliseconds(100);  // for clients to take them, at the end

// Keeps gRPC alive to the end of the process: the clean-up after its last user waits, now and then, for ten seconds
// (seen with 1.51), which a daemon that is told to stop does not have.
void keep_grpc() {
  [[maybe_unused]] static const bool kept = [] {
    grpc_init();
    return true;
  }();
}

class AdoptingServer final : public GrpcServer {
 public:
  AdoptingServer(Gateway& gateway, GrpcOptions options)
      : gateway_(gateway),
        options_(std::move(options)),
        settings_{gateway, peers_, options_.stream_place,
                  std::chrono::duration_cast<Duration>(options_.request_timeout)} {
    if (options_.admin) {
      admin_.emplace(gateway, options_, settings_.timeout);
    } else {
      terrace_.emplace(settings_, options_.tenant_names);
    }
  }
  AdoptingServer(const AdoptingServer&) = delete;
  AdoptingServer& operator=(const AdoptingServer&) = delete;
  ~AdoptingServer() override { shutdown(std::chrono::milliseconds(0)); }

  bool start() {
    keep_grpc();
    grpc::EnableDefaultHealthCheckService(true);
    grpc::ServerBuilder builder;
    if (admin_) builder.RegisterService(&*admin_);
    if (terrace_) builder.RegisterService(&*terrace_);
    grpc::ResourceQuota quota(options_.admin ? "admin" : "terrace");
    quota.Resize(options_.memory_bytes_max);
    quota.SetMaxThreads(options_.threads_max);
    builder.SetResourceQuota(quota);
    builder.SetMaxReceiveMessageSize(kMessageBytesMax);
    // A message is unpacked in whole before its length is judged: a few kilobytes would be gigabytes.
    builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
    builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
    builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kCallsPerConnectionMax);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, static_cast<int>(options_.idle_timeout.count()));
    // 1.51 takes 4 KiB for each ping beyond the limit on them until the connection is closed, which it is not while
    // there is something to write. Without a limit it answers as many as the client takes answers.
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
    server_ = builder.BuildAndStart();  // no port: connections come through adopt()
    if (!server_) return false;
    auto gate = Http2Gate::create(
        clock_, options_.memory_bytes_max / 2,
        [this](Fd connection, const Peer& peer) { return enter(connection, peer); },
        [this](const Peer& peer, const Error& why) { gateway_.count_refused(peer, why); });
    if (!gate) return false;
    gate_ = std::move(*gate);
    relay_ = std::jthread([this](const std::stop_token& stop) {
      while (!stop.stop_requested()) gate_->turn(kTurn);
    });
    set_serving(true);
    return true;
  }

  Result<void> adopt(Fd connection, const Peer& peer) override {
    const std::lock_guard lock(mutex_);
    if (down_) return fail(ErrorCode::kUnavailable, "the daemon stops");
    gate_->add(std::move(connection), peer);
    return {};
  }
  std::size_t connections() const override { return gate_->connections(); }
  void set_serving(bool serving) override { server_->GetHealthCheckService()->SetServingStatus(serving); }

  void shutdown(std::chrono::milliseconds patience) override {
    {
      const std::lock_guard lock(mutex_);
      if (std::exchange(down_, true) || !server_) return;
    }
    if (terrace_) terrace_->end_watches();
    server_->Shutdown(std::chrono::system_clock::now() + patience);
    server_->Wait();
    if (!relay_.joinable()) return;
    relay_.request_stop();
    gate_->wake();
    relay_.join();
    const Time limit = clock_.now() + kLastWords;
    while (gate_->connections() != 0 && clock_.now() < limit) gate_->turn(std::chrono::milliseconds(1));
  }

 private:
  // On the gate's thread.
  Result<void> enter(Fd& connection, const Peer& peer) {
    const std::lock_guard lock(mutex_);
    if (down_) return fail(ErrorCode::kUnavailable, "the daemon stops");
    auto moved = peers_.add(std::move(connection), peer);
    if (!moved) return std::unexpected(moved.error());
    grpc::AddInsecureChannelFromFd(server_.get(), moved->release());
    return {};
  }

  Gateway& gateway_;
  const MonotonicClock clock_;
  const GrpcOptions options_;
  GrpcPeers peers_;
  const StreamSettings settings_;
  std::optional<TerraceService> terrace_;
  std::optional<AdminService> admin_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Http2Gate> gate_;
  std::jthread relay_;
  std::mutex mutex_;
  bool down_ = false;
};

}  // namespace

Result<std::unique_ptr<GrpcServer>> GrpcServer::create(Gateway& gateway, GrpcOptions options) {
  auto server = std::make_unique<AdoptingServer>(gateway, std::move(options));
  if (!server->start()) return fail(ErrorCode::kInternal, "gRPC did not start: its own lines in the log say why");
  return server;
}

}  // namespace terrace::front
