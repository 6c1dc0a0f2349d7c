// SPDX-License-Identifier: Apache-2.0
// The Admin service: what terracectl asks.
#pragma once

#include <atomic>
#include <mutex>
#include <span>
#include <string>
#include <thread>

#include "front/gateway/gateway.h"
#include "front/grpc/server.h"
#include "terrace/v1/admin.grpc.pb.h"

namespace terrace::front {

class AdminService final : public v1::Admin::CallbackService {
 public:
  // `options` outlive the service.
  AdminService(Gateway& gateway, const GrpcOptions& options, Duration timeout)
      : gateway_(gateway), options_(options), tenant_names_(options.tenant_names), timeout_(timeout) {}

  using Context = grpc::CallbackServerContext;
  using Unary = grpc::ServerUnaryReactor;
  Unary* GetStatus(Context*, const v1::AdminGetStatusRequest*, v1::AdminGetStatusResponse*) override;
  Unary* ListSessions(Context*, const v1::ListSessionsRequest*, v1::ListSessionsResponse*) override;
  Unary* ListTensors(Context*, const v1::AdminListTensorsRequest*, v1::AdminListTensorsResponse*) override;
  Unary* GetTopology(Context*, const v1::GetTopologyRequest*, v1::GetTopologyResponse*) override;
  Unary* Drain(Context*, const v1::DrainRequest*, v1::DrainResponse*) override;
  Unary* Upgrade(Context*, const v1::UpgradeRequest*, v1::UpgradeResponse*) override;

 private:
  Gateway& gateway_;
  const GrpcOptions& options_;
  const std::span<const std::string> tenant_names_;
  const Duration timeout_;
  std::mutex asking_mutex_;
  std::atomic<bool> asking_ = false;
  std::jthread asker_;  // of the successor: that takes longer than a thread of gRPC's may be held
};

}  // namespace terrace::front
