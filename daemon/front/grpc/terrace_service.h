// SPDX-License-Identifier: Apache-2.0
// The Terrace service: each method validates, posts one request and translates its reply.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "front/gateway/gateway.h"
#include "front/grpc/call.h"
#include "front/grpc/peers.h"
#include "front/grpc/stream.h"
#include "front/grpc/watch.h"
#include "terrace/v1/terrace.grpc.pb.h"

namespace terrace::front {

class TerraceService final : public v1::Terrace::CallbackService {
 public:
  // All outlive the service.
  TerraceService(const StreamSettings& settings, std::span<const std::string> tenant_names)
      : settings_(settings), gateway_(settings.gateway), peers_(settings.peers), tenant_names_(tenant_names) {}

  // Ends the calls that have no end of their own.
  void end_watches() { watches_.end_all(); }

  using Context = grpc::CallbackServerContext;
  using Unary = grpc::ServerUnaryReactor;
  Unary* OpenSession(Context*, const v1::OpenSessionRequest*, v1::OpenSessionResponse*) override;
  Unary* CloseSession(Context*, const v1::CloseSessionRequest*, v1::CloseSessionResponse*) override;
  Unary* CreateTensors(Context*, const v1::CreateTensorsRequest*, v1::CreateTensorsResponse*) override;
  Unary* DeleteTensors(Context*, const v1::DeleteTensorsRequest*, v1::DeleteTensorsResponse*) override;
  Unary* ListTensors(Context*, const v1::ListTensorsRequest*, v1::ListTensorsResponse*) override;
  Unary* Acquire(Context*, const v1::AcquireRequest*, v1::AcquireResponse*) override;
  Unary* Release(Context*, const v1::ReleaseRequest*, v1::ReleaseResponse*) override;
  Unary* SwapIn(Context*, const v1::SwapInRequest*, v1::SwapInResponse*) override;
  Unary* SwapOut(Context*, const v1::SwapOutRequest*, v1::SwapOutResponse*) override;
  Unary* Prefetch(Context*, const v1::PrefetchRequest*, v1::PrefetchResponse*) override;
  Unary* Evict(Context*, const v1::EvictRequest*, v1::EvictResponse*) override;
  Unary* DontNeed(Context*, const v1::DontNeedRequest*, v1::DontNeedResponse*) override;
  Unary* Pin(Context*, const v1::PinRequest*, v1::PinResponse*) override;
  Unary* Unpin(Context*, const v1::UnpinRequest*, v1::UnpinResponse*) override;
  Unary* MarkStep(Context*, const v1::MarkStepRequest*, v1::MarkStepResponse*) override;
  Unary* DeclareStep(Context*, const v1::DeclareStepRequest*, v1::DeclareStepResponse*) override;
  Unary* GetStatus(Context*, const v1::GetStatusRequest*, v1::GetStatusResponse*) override;
  grpc::ServerWriteReactor<v1::ReadResponse>* Read(Context*, const v1::ReadRequest*) override;
  grpc::ServerReadReactor<v1::WriteRequest>* Write(Context*, v1::WriteResponse*) override;
  grpc::ServerWriteReactor<v1::WatchResponse>* Watch(Context*, const v1::WatchRequest*) override;

 private:
  Unary* submit(const Context& context, const std::string& token, Result<engine::Body> body, UnaryCall::Fill fill,
                std::function<engine::Body()> undo = nullptr);

  const StreamSettings& settings_;
  Gateway& gateway_;
  const GrpcPeers& peers_;
  const std::span<const std::string> tenant_names_;
  Watches watches_;
};

}  // namespace terrace::front
