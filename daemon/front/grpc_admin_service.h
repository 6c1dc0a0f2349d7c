// SPDX-License-Identifier: Apache-2.0
// The Admin service: what terracectl asks.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "front/gateway.h"
#include "terrace/v1/admin.grpc.pb.h"

namespace terrace::front {

class AdminService final : public v1::Admin::CallbackService {
 public:
  // `on_drain`: called on the reactor thread when the engine drains. All outlive the service.
  AdminService(Gateway& gateway, std::span<const std::string> tenant_names, Duration timeout,
               const std::function<void()>& on_drain)
      : gateway_(gateway), tenant_names_(tenant_names), timeout_(timeout), on_drain_(on_drain) {}

  using Context = grpc::CallbackServerContext;
  using Unary = grpc::ServerUnaryReactor;
  Unary* GetStatus(Context*, const v1::AdminGetStatusRequest*, v1::AdminGetStatusResponse*) override;
  Unary* ListSessions(Context*, const v1::ListSessionsRequest*, v1::ListSessionsResponse*) override;
  Unary* ListTensors(Context*, const v1::AdminListTensorsRequest*, v1::AdminListTensorsResponse*) override;
  Unary* GetTopology(Context*, const v1::GetTopologyRequest*, v1::GetTopologyResponse*) override;
  Unary* Drain(Context*, const v1::DrainRequest*, v1::DrainResponse*) override;

 private:
  Gateway& gateway_;
  const std::span<const std::string> tenant_names_;
  const Duration timeout_;
  const std::function<void()>& on_drain_;
};

}  // namespace terrace::front
