// SPDX-License-Identifier: Apache-2.0
#include "front/grpc/admin_service.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "front/grpc/call.h"
#include "front/grpc/convert.h"

namespace terrace::front {
namespace {

// Asks one session after another for its tensors, so that one listing holds one place in the daemon's queue.
class Listing : public std::enable_shared_from_this<Listing> {
 public:
  Listing(Gateway& gateway, std::span<const std::string> tenant_names, Time deadline,
          const v1::AdminListTensorsRequest& request, v1::AdminListTensorsResponse& response)
      : gateway_(gateway),
        tenant_names_(tenant_names),
        deadline_(deadline),
        only_(request.session()),
        prefix_(request.prefix()),
        response_(response),
        call_(UnaryCall::open(gateway)) {}

  grpc::ServerUnaryReactor* start() {
    grpc::ServerUnaryReactor* reactor = call_.get();
    post({.deadline = deadline_, .body = engine::GetStatus{}},
         [self = shared_from_this()](engine::ReplyBody& reply) { self->choose(std::get<engine::Status>(reply)); });
    return reactor;
  }

 private:
  void post(engine::Request request, std::move_only_function<void(engine::ReplyBody&)> then) {
    gateway_.post(std::move(request), [self = shared_from_this(), then = std::move(then)](engine::Reply reply) mutable {
      if (reply.result) return then(*reply.result);
      if (self->next_ > 0 && reply.result.error().code == ErrorCode::kNotFound) return self->ask();  // closed since
      self->call_->finish(std::unexpected(reply.result.error()));
    });
  }
  void choose(const engine::Status& status) {
    for (const auto& session : status.sessions)
      if (only_ == 0 || is_meant(session)) sessions_.push_back(session);
    if (only_ != 0 && sessions_.empty())
      return call_->finish(fail(ErrorCode::kNotFound, fmt::format("there is no open session {}", only_)));
    ask();
  }
  // By its own number, or, a share, by that of a session that has a part in it.
  bool is_meant(const engine::SessionStatus& session) const {
    return session.session == SessionId{only_} ||
           std::ranges::find(session.members, SessionId{only_}, &engine::SessionStatus::Member::session) !=
               session.members.end();
  }
  void ask() {
    if (next_ == sessions_.size()) return call_->finish({});
    const engine::SessionStatus& session = sessions_[next_++];
    const SessionId asks = session.members.empty() ? session.session : session.members.front().session;
    engine::Request request{.session = asks, .deadline = deadline_, .body = engine::ListTensors{prefix_}};
    post(std::move(request), [self = shared_from_this(), &session](engine::ReplyBody& reply) {
      self->add(session, std::get<engine::TensorList>(reply));
      self->ask();
    });
  }
  void add(const engine::SessionStatus& session, const engine::TensorList& list) {
    auto& out = *response_.add_sessions();
    out.set_session(static_cast<std::uint32_t>(session.session));
    if (session.tenant.socket < tenant_names_.size()) out.set_tenant(tenant_names_[session.tenant.socket]);
    for (const auto& info : list.tensors) from_info(info, *out.add_tensors());
  }

  Gateway& gateway_;
  const std::span<const std::string> tenant_names_;
  const Time deadline_;
  const std::uint32_t only_;
  const std::string prefix_;
  v1::AdminListTensorsResponse& response_;
  const std::shared_ptr<UnaryCall> call_;
  std::vector<engine::SessionStatus> sessions_;
  std::size_t next_ = 0;
};

}  // namespace

AdminService::Unary* AdminService::GetStatus(Context* context, const v1::AdminGetStatusRequest* /*request*/,
                                             v1::AdminGetStatusResponse* response) {
  engine::Request request{.deadline = call_deadline(*context, gateway_, timeout_), .body = engine::GetStatus{}};
  return UnaryCall::start(gateway_, std::move(request), [this, response](engine::ReplyBody& reply) {
    const auto& status = std::get<engine::Status>(reply);
    from_status(status, gateway_.facts(), *response->mutable_status());
    for (const auto& session : status.sessions)
      from_session(session, tenant_names_, *response->mutable_status()->add_sessions());
  });
}

AdminService::Unary* AdminService::ListSessions(Context* context, const v1::ListSessionsRequest* /*request*/,
                                                v1::ListSessionsResponse* response) {
  engine::Request request{.deadline = call_deadline(*context, gateway_, timeout_), .body = engine::GetStatus{}};
  return UnaryCall::start(gateway_, std::move(request), [this, response](engine::ReplyBody& reply) {
    for (const auto& session : std::get<engine::Status>(reply).sessions)
      from_session(session, tenant_names_, *response->add_sessions());
  });
}

AdminService::Unary* AdminService::ListTensors(Context* context, const v1::AdminListTensorsRequest* request,
                                               v1::AdminListTensorsResponse* response) {
  return std::make_shared<Listing>(gateway_, tenant_names_, call_deadline(*context, gateway_, timeout_), *request,
                                   *response)
      ->start();
}

AdminService::Unary* AdminService::GetTopology(Context* /*context*/, const v1::GetTopologyRequest* /*request*/,
                                               v1::GetTopologyResponse* response) {
  response->set_topology_json(gateway_.facts().topology_json);
  response->set_start_report(gateway_.facts().start_report);
  return UnaryCall::finished({});
}

AdminService::Unary* AdminService::Drain(Context* context, const v1::DrainRequest* /*request*/,
                                         v1::DrainResponse* response) {
  auto call = UnaryCall::open(gateway_);
  const Time deadline = call_deadline(*context, gateway_, timeout_);
  gateway_.post(
      {.deadline = deadline, .body = engine::Drain{}}, [this, call, deadline, response](engine::Reply drained) {
        if (!drained.result) return call->finish(std::unexpected(drained.result.error()));
        if (options_.on_drain) options_.on_drain();
        gateway_.post({.deadline = deadline, .body = engine::GetStatus{}}, [call, response](engine::Reply reply) {
          if (!reply.result) return call->finish(std::unexpected(reply.result.error()));
          const auto& status = std::get<engine::Status>(*reply.result);
          response->set_sessions(static_cast<std::uint32_t>(status.sessions.size()));
          call->finish({});
        });
      });
  return call.get();
}

AdminService::Unary* AdminService::Upgrade(Context* /*context*/, const v1::UpgradeRequest* request,
                                           v1::UpgradeResponse* response) {
  const std::scoped_lock lock(asking_mutex_);
  if (asking_.exchange(true))
    return UnaryCall::finished(fail(ErrorCode::kFailedPrecondition, "an upgrade is under way already"));
  auto call = UnaryCall::open(gateway_);
  asker_ = std::jthread([this, call, response, check_only = request->check_only()] {
    const Result<std::string> version = options_.ask_successor();
    const bool goes = version && !check_only && !call->cancelled();  // whoever gave up is not surprised later
    if (version) response->set_version(*version);
    response->set_process(::getpid());
    if (!goes) asking_ = false;
    call->finish(version ? Result<void>() : std::unexpected(version.error()));
    if (goes) options_.stop();
  });
  return call.get();
}

}  // namespace terrace::front
