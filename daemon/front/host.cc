// SPDX-License-Identifier: Apache-2.0
// The loop: what wakes the reactor, what it gives to the engine, and what the engine asks for.
#include "front/host.h"

#include <fmt/format.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/signalfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "front/doors/doors.h"

namespace terrace::front {
namespace {

constexpr Duration kSweepPeriod = std::chrono::milliseconds(200);

// Whoever is turned away on our own socket is told why; a gRPC client sees the connection close, and tries again.
void refuse(Fd connection, const Error& reason) {
  static_cast<void>(DataConnection(std::move(connection)).send(refusal(reason)));
}

}  // namespace

Host::Host(const config::Config& config, Parts parts, NodeFacts facts, Inheritance inheritance)
    : config_(config),
      node_(std::move(parts.node)),
      facts_(std::move(facts)),
      reactor_(std::move(parts.reactor)),
      workers_(std::move(parts.workers)),
      mover_(std::move(parts.mover)),
      adopted_(std::move(inheritance.adopted)),
      loop_(std::make_unique<EngineLoop>(*reactor_, *mover_, static_cast<Receiver&>(*this))),
      keeper_(*reactor_, *loop_, std::move(inheritance.store)),
      block_(node_, *loop_, notify_),
      failures_(node_),
      doors_(*reactor_, config_) {}

Host::~Host() { reactor_->turn_deaf(); }

Result<std::unique_ptr<Host>> Host::create(const config::Config& config, const mover::Workers::Options& worker_options,
                                           NodeFacts facts, Inheritance inheritance) {
  const config::Limits& limits = config.limits;
  auto node = make_node(config, !inheritance.adopted.empty());
  if (!node) return std::unexpected(node.error());
  // A session has three polls (connection, doorbell, process) and at times a fourth.
  auto reactor = Reactor::create(limits.requests_queued_max, 4 * limits.connections_max + 4 * limits.sessions_max + 64);
  if (!reactor) return std::unexpected(reactor.error());
  auto workers = mover::Workers::create(worker_options);
  if (!workers) return std::unexpected(workers.error());
  auto mover = mover::Mover::create((*reactor)->ring(), **workers, node->borrowed(), {});
  if (!mover) return std::unexpected(mover.error());
  Parts parts{std::move(*node), std::move(*reactor), std::move(*workers), std::move(*mover)};
  std::unique_ptr<Host> host(new Host(config, std::move(parts), std::move(facts), std::move(inheritance)));
  if (const auto started = host->start(); !started) return std::unexpected(started.error());
  return host;
}

Result<void> Host::start() {
  if (const auto made = make_engine(); !made) return made;
  failures_.look(loop_->engine(), now());
  make_foreseer();
  if (const auto watched = watch_taken_back(); !watched) return watched;
  doors_.count([this] { return sessions_.size() + newcomers_.size(); });
  for (std::uint32_t tenant = 0; tenant < config_.tenants.size(); ++tenant) {
    auto listener =
        Listener::bind(config_.tenants[tenant].data_socket, SOCK_SEQPACKET, config_.tenants[tenant].door_mode());
    if (!listener) return std::unexpected(listener.error());
    const auto adopt = [this](Fd connection, const Peer& peer) {
      greet(std::move(connection), peer);
      return true;
    };
    const auto added = doors_.add(std::move(*listener), Peer{.tenant = {.socket = tenant}}, adopt, refuse);
    if (!added) return std::unexpected(added.error());
  }
  return {};
}

Result<void> Host::listen_stream(const std::string& path, mode_t mode, Peer peer, Adopt adopt) {
  auto listener = Listener::bind(path, SOCK_STREAM, mode);
  if (!listener) return std::unexpected(listener.error());
  return doors_.add(std::move(*listener), peer, std::move(adopt));
}

Result<void> Host::serve(std::function<void()> stopping) {
  block_.begin_serving();
  may_poll_ = may_busy_poll();
  spdlog::info("serving on {}", config_.tenants.front().data_socket);
  while (!reactor_->stopping())
    if (const auto turned = turn(kSweepPeriod); !turned) return turned;

  notify_.send("STOPPING=1\nSTATUS=stopping");
  spdlog::info("stopping");
  doors_.close();
  std::atomic<bool> fronts_stopped = false;
  std::jthread fronts([&] {
    stopping();
    fronts_stopped = true;
  });
  const Time limit = now() + std::chrono::milliseconds(config_.limits.stop_timeout_ms);
  bool ended = false;
  while (now() < limit && !(ended && fronts_stopped && (keeper_.keeps() || (sessions_.empty() && newcomers_.empty())) &&
                            mover_->in_flight() == 0)) {
    if (const auto turned = turn(std::chrono::milliseconds(20)); !turned) return turned;
    if (fronts_stopped && !ended) {
      wind_up();
      ended = true;
    }
  }
  if (!ended) wind_up();
  while (!fronts_stopped)  // its calls still need their answers
    if (const auto turned = turn(std::chrono::milliseconds(20)); !turned) return turned;
  reactor_->close();
  return {};
}

void Host::wind_up() {
  const Error reason{ErrorCode::kUnavailable, "the daemon is stopping", 0};
  for (const auto& tier : node_.mapped)
    if (tier) tier->leave_bytes();
  std::vector<Session*> all;
  if (keeper_.keeps())
    return loop_->pump();  // a stop cannot be told from a restart: the sessions stay with the supervisor
  for (auto& [key, session] : newcomers_) all.push_back(session.get());
  for (auto& [id, session] : sessions_) all.push_back(session.get());
  for (Session* session : all) end(*session, reason);
  loop_->pump();
}

Result<void> Host::turn(Duration longest) {
  const Time before = now();
  const Time next = loop_->engine().next_deadline();
  Duration wait = until_next_drain(block_.until_next_look(longest));
  if (next != kNever) wait = std::clamp(next - before, Duration::zero(), wait);
  if (keeper_.pending()) wait = std::min<Duration>(wait, std::chrono::milliseconds(1));
  if (poll_rings(wait)) wait = Duration::zero();
  if (const auto woken = reactor_->wait(wait); !woken) return woken;
  drain_trainers();
  loop_->pump();
  block_.look();
  if (now() - last_sweep_ >= kSweepPeriod) sweep();
  reactor_->bury();
  return {};
}

void Host::complete(engine::Status& status) {
  node_.add_devices(status);
  status.resubmitted_requests = resubmitted_requests_;
}

void Host::sweep() {
  last_sweep_ = now();
  failures_.look(loop_->engine(), now());
  failures_.tell_of_pinning(mover_->facts());
  if (const Duration period = notify_.watchdog_period(); period.count() > 0 && now() - last_watchdog_ >= period) {
    notify_.send("WATCHDOG=1");
    last_watchdog_ = now();
  }
  std::vector<Session*> late;
  for (auto& [key, session] : newcomers_)
    if (session->state == Session::State::kGreeting && now() >= session->greeting_deadline)
      late.push_back(session.get());
  for (Session* session : late) end(*session, {ErrorCode::kDeadlineExceeded, "no greeting came", 0});

  const Duration idle_max = std::chrono::milliseconds(config_.limits.session_idle_timeout_ms);
  for (const SessionId id : tokens_.unused_for(idle_max, now())) {
    Session* session = find(id);
    if (session != nullptr && session->connection == nullptr && !session->maps)
      end(*session, {ErrorCode::kDeadlineExceeded, "idle", 0});
  }
  for (auto& [id, session] : sessions_) drain_logs(*session);
  loop_->pump();
}

}  // namespace terrace::front
