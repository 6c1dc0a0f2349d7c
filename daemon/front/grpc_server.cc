// SPDX-License-Identifier: Apache-2.0
#include "front/grpc_server.h"

#include <grpc/grpc.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server_posix.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <utility>

#include "front/grpc_admin_service.h"
#include "front/grpc_peers.h"
#include "front/grpc_stream.h"
#include "front/grpc_terrace_service.h"

namespace terrace::front {
namespace {

constexpr int kMessageBytesMax = 16 * 1024 * 1024;  // CreateTensors with the most and longest names fits
constexpr int kCallsPerConnectionMax = 1024;

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
      : options_(std::move(options)),
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
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kCallsPerConnectionMax);
    server_ = builder.BuildAndStart();  // no port: connections come through adopt()
    if (!server_) return false;
    set_serving(true);
    return true;
  }

  Result<void> adopt(Fd connection, const Peer& peer) override {
    const std::lock_guard lock(mutex_);
    if (down_) return fail(ErrorCode::kUnavailable, "the daemon stops");
    auto moved = peers_.add(std::move(connection), peer);
    if (!moved) return std::unexpected(moved.error());
    grpc::AddInsecureChannelFromFd(server_.get(), moved->release());
    return {};
  }
  std::size_t connections() const override { return peers_.open(); }
  void set_serving(bool serving) override { server_->GetHealthCheckService()->SetServingStatus(serving); }

  void shutdown(std::chrono::milliseconds patience) override {
    {
      const std::lock_guard lock(mutex_);
      if (std::exchange(down_, true) || !server_) return;
    }
    if (terrace_) terrace_->end_watches();
    server_->Shutdown(std::chrono::system_clock::now() + patience);
    server_->Wait();
  }

 private:
  const GrpcOptions options_;
  GrpcPeers peers_;
  const StreamSettings settings_;
  std::optional<TerraceService> terrace_;
  std::optional<AdminService> admin_;
  std::unique_ptr<grpc::Server> server_;
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
