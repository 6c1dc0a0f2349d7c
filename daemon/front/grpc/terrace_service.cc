// SPDX-License-Identifier: Apache-2.0
#include "front/grpc/terrace_service.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "front/grpc/authenticate.h"
#include "front/grpc/convert.h"
#include "front/grpc/read.h"
#include "front/grpc/write.h"
#include "shm/layout.h"

namespace terrace::front {
namespace {

constexpr std::uint64_t kListPageBytes = 1024 * 1024;  // gRPC's clients take messages of 4 MiB unless told otherwise

// A request about a set of handles alone.
template <typename Body>
Result<engine::Body> about(const google::protobuf::RepeatedField<std::uint64_t>& packed) {
  auto handles = to_handles(packed);
  if (!handles) return std::unexpected(handles.error());
  return Body{std::move(*handles)};
}

// A request about a set and a place.
template <typename Body, typename Request>
Result<engine::Body> about_place(const Request& request, PlaceUse use) {
  const auto place = to_place(request.has_place(), request.place(), use);
  if (!place) return std::unexpected(place.error());
  auto handles = to_handles(request.tensors());
  if (!handles) return std::unexpected(handles.error());
  return Body{*place, std::move(*handles)};
}

// Writes where a set is into a response.
template <typename Response>
UnaryCall::Fill located(Response* response) {
  return [response](engine::ReplyBody& reply) {
    for (const auto& placement : std::get<engine::Located>(reply).tensors)
      from_placement(placement, *response->add_tensors());
  };
}

void nothing(engine::ReplyBody& /*reply*/) {}

Result<engine::Body> to_create(const v1::CreateTensorsRequest& request) {
  const auto count = static_cast<std::size_t>(request.tensors_size());
  if (count == 0 || count > shm::kCreateMax)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("tensors has {} entries: 1 to {} in one call", count, shm::kCreateMax));
  engine::CreateTensors create;
  create.tensors.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    auto spec = to_spec(request.tensors(static_cast<int>(i)), i);
    if (!spec) return std::unexpected(spec.error());
    create.tensors.push_back(std::move(*spec));
  }
  return create;
}

Result<engine::Body> to_declaration(const v1::DeclareStepRequest& request) {
  const auto kind = to_step_kind(request.kind());
  if (!kind) return std::unexpected(kind.error());
  engine::DeclareStep step{.kind = *kind, .position = 0, .sets = {}};
  std::size_t tensors = 0;
  for (const auto& set : request.sets()) {
    tensors += static_cast<std::size_t>(set.tensors_size());
    if (tensors > shm::kSetMax)
      return fail(
          ErrorCode::kInvalidArgument,
          fmt::format("sets has more than {} handles: declare longer steps by the client library", shm::kSetMax));
    const auto place = to_place(set.has_place(), set.place(), PlaceUse::kLease);
    if (!place) return std::unexpected(place.error());
    const auto mode = to_mode(set.mode());
    if (!mode) return std::unexpected(mode.error());
    auto handles = to_handles(set.tensors());
    if (!handles) return std::unexpected(handles.error());
    const std::uint64_t compute_us = std::min<std::uint64_t>(set.compute_us(), UINT32_MAX);  // more than an hour
    step.sets.push_back({*place, *mode, std::chrono::microseconds(compute_us), std::move(*handles)});
  }
  return step;
}

void fill_opened(const Gateway::Opened& opened, v1::OpenSessionResponse& out) {
  out.set_token(opened.token.data(), opened.token.size());
  out.set_session(static_cast<std::uint32_t>(opened.session));
  for (const engine::PlaceOffer& offer : opened.places) {
    v1::SessionPlaceOffer& one = *out.add_places();
    from_place(offer.place, *one.mutable_place());
    one.set_range_bytes(offer.range_bytes);
    one.set_guarantee_bytes(offer.guarantee_bytes);
  }
}

}  // namespace

TerraceService::Unary* TerraceService::submit(const Context& context, const std::string& token,
                                              Result<engine::Body> body, UnaryCall::Fill fill,
                                              std::function<engine::Body()> undo) {
  const auto session = authenticate(gateway_, peers_, context, token);
  if (!session) return UnaryCall::finished(std::unexpected(session.error()));
  if (!body) return UnaryCall::finished(std::unexpected(body.error()));
  engine::Request request{
      .session = *session, .deadline = call_deadline(context, gateway_, settings_.timeout), .body = std::move(*body)};
  return UnaryCall::start(gateway_, std::move(request), std::move(fill), std::move(undo));
}

TerraceService::Unary* TerraceService::OpenSession(Context* context, const v1::OpenSessionRequest* request,
                                                   v1::OpenSessionResponse* response) {
  const auto peer = peer_of(peers_, *context);
  if (!peer) return UnaryCall::finished(std::unexpected(peer.error()));
  auto open = to_open(*request, *peer);
  if (!open) return UnaryCall::finished(std::unexpected(open.error()));
  auto call = UnaryCall::open(gateway_);
  gateway_.open(*peer, std::move(*open), call_deadline(*context, gateway_, settings_.timeout),
                [this, call, response](Result<Gateway::Opened> opened) {
                  if (!opened) return call->finish(std::unexpected(opened.error()));
                  if (call->cancelled())  // nobody learns the token
                    return post_surely(gateway_, opened->session, engine::CloseSession{}, [call] {
                      call->finish(fail(ErrorCode::kCancelled, "the caller gave up; the session is closed again"));
                    });
                  fill_opened(*opened, *response);
                  call->finish({});
                });
  return call.get();
}

TerraceService::Unary* TerraceService::CloseSession(Context* context, const v1::CloseSessionRequest* request,
                                                    v1::CloseSessionResponse* /*response*/) {
  return submit(*context, request->token(), engine::CloseSession{}, nothing);
}

TerraceService::Unary* TerraceService::CreateTensors(Context* context, const v1::CreateTensorsRequest* request,
                                                     v1::CreateTensorsResponse* response) {
  return submit(*context, request->token(), to_create(*request), [response](engine::ReplyBody& reply) {
    for (const Handle& handle : std::get<engine::Handles>(reply).tensors) response->add_tensors(handle.packed());
  });
}

TerraceService::Unary* TerraceService::DeleteTensors(Context* context, const v1::DeleteTensorsRequest* request,
                                                     v1::DeleteTensorsResponse* /*response*/) {
  return submit(*context, request->token(), about<engine::DeleteTensors>(request->tensors()), nothing);
}

TerraceService::Unary* TerraceService::ListTensors(Context* context, const v1::ListTensorsRequest* request,
                                                   v1::ListTensorsResponse* response) {
  return submit(*context, request->token(),
                engine::ListTensors{request->prefix(), request->page_token(), kListPageBytes},
                [response](engine::ReplyBody& reply) {
                  const auto& list = std::get<engine::TensorList>(reply);
                  for (const auto& info : list.tensors) from_info(info, *response->add_tensors());
                  response->set_next_page_token(list.next_slot);
                });
}

TerraceService::Unary* TerraceService::Acquire(Context* context, const v1::AcquireRequest* request,
                                               v1::AcquireResponse* response) {
  auto body = about_place<engine::Move>(*request, PlaceUse::kLease);
  const auto modes = to_modes(*request);
  if (!body || !modes)
    return submit(*context, request->token(), std::unexpected(!body ? body.error() : modes.error()), nothing);
  auto& set = std::get<engine::Move>(*body);
  const std::vector<Handle> handles = set.tensors;
  return submit(*context, request->token(),
                engine::Acquire{set.place, *modes, std::move(set.tensors), request->passing()}, located(response),
                [modes = *modes, handles] { return engine::Release{modes, handles, true}; });
}

TerraceService::Unary* TerraceService::Release(Context* context, const v1::ReleaseRequest* request,
                                               v1::ReleaseResponse* /*response*/) {
  const auto modes = to_modes(*request);
  auto handles = to_handles(request->tensors());
  if (!modes || !handles)
    return submit(*context, request->token(), std::unexpected(!modes ? modes.error() : handles.error()), nothing);
  return submit(*context, request->token(), engine::Release{*modes, std::move(*handles)}, nothing);
}

TerraceService::Unary* TerraceService::SwapIn(Context* context, const v1::SwapInRequest* request,
                                              v1::SwapInResponse* response) {
  return submit(*context, request->token(), about_place<engine::Move>(*request, PlaceUse::kLease), located(response));
}

TerraceService::Unary* TerraceService::SwapOut(Context* context, const v1::SwapOutRequest* request,
                                               v1::SwapOutResponse* response) {
  return submit(*context, request->token(), about_place<engine::Move>(*request, PlaceUse::kSwapOut), located(response));
}

TerraceService::Unary* TerraceService::Prefetch(Context* context, const v1::PrefetchRequest* request,
                                                v1::PrefetchResponse* /*response*/) {
  return submit(*context, request->token(), about_place<engine::Prefetch>(*request, PlaceUse::kLease), nothing);
}

TerraceService::Unary* TerraceService::Evict(Context* context, const v1::EvictRequest* request,
                                             v1::EvictResponse* /*response*/) {
  return submit(*context, request->token(), about<engine::Evict>(request->tensors()), nothing);
}

TerraceService::Unary* TerraceService::DontNeed(Context* context, const v1::DontNeedRequest* request,
                                                v1::DontNeedResponse* /*response*/) {
  return submit(*context, request->token(), about<engine::DontNeed>(request->tensors()), nothing);
}

TerraceService::Unary* TerraceService::Pin(Context* context, const v1::PinRequest* request, v1::PinResponse* response) {
  auto body = about_place<engine::Pin>(*request, PlaceUse::kLease);
  std::function<engine::Body()> undo;
  if (body) undo = [handles = std::get<engine::Pin>(*body).tensors] { return engine::Unpin{handles}; };
  return submit(*context, request->token(), std::move(body), located(response), std::move(undo));
}

TerraceService::Unary* TerraceService::Unpin(Context* context, const v1::UnpinRequest* request,
                                             v1::UnpinResponse* /*response*/) {
  return submit(*context, request->token(), about<engine::Unpin>(request->tensors()), nothing);
}

TerraceService::Unary* TerraceService::MarkStep(Context* context, const v1::MarkStepRequest* request,
                                                v1::MarkStepResponse* /*response*/) {
  const auto kind = to_step_kind(request->kind());
  if (!kind) return submit(*context, request->token(), std::unexpected(kind.error()), nothing);
  return submit(*context, request->token(), engine::MarkStep{*kind}, nothing);
}

TerraceService::Unary* TerraceService::DeclareStep(Context* context, const v1::DeclareStepRequest* request,
                                                   v1::DeclareStepResponse* /*response*/) {
  return submit(*context, request->token(), to_declaration(*request), nothing);
}

TerraceService::Unary* TerraceService::GetStatus(Context* context, const v1::GetStatusRequest* /*request*/,
                                                 v1::GetStatusResponse* response) {
  const auto peer = peer_of(peers_, *context);
  if (!peer) return UnaryCall::finished(std::unexpected(peer.error()));
  engine::Request request{.deadline = call_deadline(*context, gateway_, settings_.timeout),
                          .body = engine::GetStatus{}};
  return UnaryCall::start(gateway_, std::move(request), [this, response, peer = *peer](engine::ReplyBody& reply) {
    const auto& status = std::get<engine::Status>(reply);
    from_status(status, gateway_.facts(), *response->mutable_status());
    for (const auto& session : status.sessions)
      if (session.tenant == peer.tenant)
        from_session(session, tenant_names_, *response->mutable_status()->add_sessions());
  });
}

grpc::ServerWriteReactor<v1::ReadResponse>* TerraceService::Read(Context* context, const v1::ReadRequest* request) {
  return start_read(settings_, *context, *request);
}

grpc::ServerReadReactor<v1::WriteRequest>* TerraceService::Write(Context* context, v1::WriteResponse* response) {
  return start_write(settings_, *context, *response);
}

grpc::ServerWriteReactor<v1::WatchResponse>* TerraceService::Watch(Context* context, const v1::WatchRequest* request) {
  return WatchCall::start(gateway_, peers_, watches_, *context, request->token());
}

}  // namespace terrace::front
