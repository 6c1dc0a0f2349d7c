// SPDX-License-Identifier: Apache-2.0
// Between terrace.v1 messages and the engine's values. Every function that takes a message from outside validates it;
// InvalidArgument names the field and what would be right. Pure: no state, any thread.
#pragma once

#include <google/protobuf/repeated_field.h>
#include <grpcpp/support/status.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/values/request.h"
#include "front/gateway/gateway.h"
#include "terrace/error.h"
#include "terrace/v1/status.pb.h"
#include "terrace/v1/terrace.pb.h"

namespace terrace::front {

// The status of a failed call, with a google.rpc.ErrorInfo in its details.
grpc::Status to_grpc(const Error& error);

Result<Token> to_token(std::string_view bytes);

// The places that a request may name besides devices.
enum class PlaceUse : std::uint8_t {
  kLease,    // host and devices
  kSwapOut,  // host and block
};
Result<std::uint32_t> to_place(bool present, const v1::Place& place, PlaceUse use, std::string_view field = "place");
Result<shm::Mode> to_mode(v1::LeaseMode mode, std::string_view field = "mode");
// One for all tensors of a set, or each in its own way.
Result<engine::Modes> to_modes(v1::LeaseMode all, const google::protobuf::RepeatedField<int>& each, int tensors);
// Of a request with `mode` for all of its tensors, or `modes` for each.
template <typename Request>
Result<engine::Modes> to_modes(const Request& request) {
  return to_modes(request.mode(), request.modes(), request.tensors_size());
}
Result<std::uint32_t> to_step_kind(v1::StepKind kind);
// 1 to 65536 handles, none twice.
Result<std::vector<Handle>> to_handles(const google::protobuf::RepeatedField<std::uint64_t>& packed);
Result<engine::TensorSpec> to_spec(const v1::TensorSpec& spec, std::size_t index);
Result<engine::OpenSession> to_open(const v1::OpenSessionRequest& request, const Peer& peer);

void from_place(std::uint32_t place, v1::Place& out);
void from_placement(const engine::Placement& placement, v1::Placement& out);
void from_info(const engine::TensorInfo& info, v1::TensorInfo& out);

// `tenant_names`: by Tenant::socket.
void from_session(const engine::SessionStatus& session, std::span<const std::string> tenant_names,
                  v1::SessionStatus& out);
// Everything but the sessions.
void from_status(const engine::Status& status, const NodeFacts& facts, v1::NodeStatus& out);
// The room behind each place and on the block tier.
void from_headroom(const engine::Status& status, v1::WatchResponse& out);

}  // namespace terrace::front
