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
constexpr int kAcceptsAtOnce = 64;

// Whoever is turned away on our own socket is told why; a gRPC client sees the connection close, and tries again.
void refuse(Fd connection, const Error& reason) {
  static_cast<void>(DataConnection(std::move(connection)).send(refusal(reason)));
}

}  // namespace

Host::Host(const config::Config& config, Node node, NodeFacts facts, Inheritance inheritance)
    : config_(config),
      node_(std::move(node)),
      facts_(std::move(facts)),
      store_(std::move(inheritance.store)),
      adopted_(std::move(inheritance.adopted)) {}

Host::~Host() = default;

Result<std::unique_ptr<Host>> Host::create(const config::Config& config, const mover::Workers::Options& workers,
                                           NodeFacts facts, Inheritance inheritance) {
  auto node = make_node(config, !inheritance.adopted.empty());
  if (!node) return std::unexpected(node.error());
  std::unique_ptr<Host> host(new Host(config, std::move(*node), std::move(facts), std::move(inheritance)));
  if (const auto started = host->start(workers); !started) return std::unexpected(started.error());
  return host;
}

Result<void> Host::start(const mover::Workers::Options& worker_options) {
  const config::Limits& limits = config_.limits;
  auto mailbox = Mailbox::create(limits.requests_queued_max);
  if (!mailbox) return std::unexpected(mailbox.error());
  mailbox_ = std::move(*mailbox);
  // A session has three polls (connection, doorbell, process) and at times a fourth.
  auto ring = mover::Ring::create({.polls_max = 4 * limits.connections_max + 4 * limits.sessions_max + 64});
  if (!ring) return std::unexpected(ring.error());
  ring_ = std::move(*ring);
  auto workers = mover::Workers::create(worker_options);
  if (!workers) return std::unexpected(workers.error());
  workers_ = std::move(*workers);
  auto mover = mover::Mover::create(*ring_, *workers_, node_.borrowed(), {});
  if (!mover) return std::unexpected(mover.error());
  mover_ = std::move(*mover);
  if (const auto made = make_engine(); !made) return made;
  look_for_failures();
  make_foreseer();
  if (const auto watched = watch_taken_back(); !watched) return watched;

  auto signals = stop_signals();
  if (!signals) return std::unexpected(signals.error());
  signals_ = std::move(*signals);
  auto mail = Watch::create(*ring_, mailbox_->descriptor(), POLLIN, [this](unsigned) { mailbox_->run(); });
  if (!mail) return std::unexpected(mail.error());
  watches_.push_back(std::move(*mail));
  auto signal = Watch::create(*ring_, signals_.get(), POLLIN, [this](unsigned) {
    signalfd_siginfo info{};
    if (read(signals_.get(), &info, sizeof info) == sizeof info) stopping_ = true;
  });
  if (!signal) return std::unexpected(signal.error());
  watches_.push_back(std::move(*signal));

  for (std::uint32_t tenant = 0; tenant < config_.tenants.size(); ++tenant) {
    auto listener =
        Listener::bind(config_.tenants[tenant].data_socket, SOCK_SEQPACKET, config_.tenants[tenant].door_mode());
    if (!listener) return std::unexpected(listener.error());
    const auto added = add_door(std::move(*listener), Peer{.tenant = {.socket = tenant}}, nullptr);
    if (!added) return std::unexpected(added.error());
  }
  return {};
}

Result<void> Host::listen_stream(const std::string& path, mode_t mode, Peer peer, Adopt adopt) {
  auto listener = Listener::bind(path, SOCK_STREAM, mode);
  if (!listener) return std::unexpected(listener.error());
  return add_door(std::move(*listener), peer, std::move(adopt));
}

Result<void> Host::add_door(Listener listener, Peer peer, Adopt adopt) {
  auto door = std::make_unique<Door>(Door{std::move(listener), peer, std::move(adopt), nullptr});
  auto watch =
      Watch::create(*ring_, door->listener.descriptor(), POLLIN, [this, &door = *door](unsigned) { accept(door); });
  if (!watch) return std::unexpected(watch.error());
  door->watch = std::move(*watch);
  doors_.push_back(std::move(door));
  return {};
}

void Host::accept(Door& door) {
  for (int count = 0; count < kAcceptsAtOnce; ++count) {
    auto accepted = door.listener.accept();
    if (!accepted) return;
    Peer peer = door.peer;
    peer.tenant.uid = accepted->credentials.uid;
    peer.pid = accepted->credentials.pid;
    const std::size_t connections = sessions_.size() + newcomers_.size() + other_connections_();
    const bool full = connections >= config_.limits.connections_max && !peer.admin;  // the administrator always gets in
    if (!admits(config_, peer, peer.tenant.uid)) {
      if (!door.adopt)
        refuse(std::move(accepted->connection),
               {ErrorCode::kPermissionDenied,
                fmt::format("uid {} is not admitted here: write it into `uids` of the [[tenant]] \"{}\" in the "
                            "daemon's configuration, and restart the daemon",
                            peer.tenant.uid, config_.tenants.at(peer.tenant.socket).name),
                0});
    } else if (full) {
      if (!door.adopt)
        refuse(std::move(accepted->connection),
               {ErrorCode::kResourceExhausted,
                fmt::format("the daemon has {} connections, as many as limits.connections_max and the descriptors that "
                            "it may have allow; try again later",
                            connections),
                0});
    } else if (!door.adopt) {
      greet(std::move(accepted->connection), peer);
    } else if (!door.adopt(std::move(accepted->connection), peer)) {
      spdlog::warn("a connection on {} could not be taken", door.listener.path());
    }
  }
}

Result<void> Host::serve(std::function<void()> stopping) {
  begin_serving();
  may_poll_ = may_busy_poll();
  spdlog::info("serving on {}", config_.tenants.front().data_socket);
  while (!stopping_)
    if (const auto turned = turn(kSweepPeriod); !turned) return turned;

  notify_.send("STOPPING=1\nSTATUS=stopping");
  spdlog::info("stopping");
  doors_.clear();
  std::atomic<bool> fronts_stopped = false;
  std::jthread fronts([&] {
    stopping();
    fronts_stopped = true;
  });
  const Time limit = now() + std::chrono::milliseconds(config_.limits.stop_timeout_ms);
  bool ended = false;
  while (now() < limit && !(ended && fronts_stopped && (store_.keeps() || (sessions_.empty() && newcomers_.empty())) &&
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
  mailbox_->close();
  return {};
}

void Host::stop() {
  stopping_ = true;
  static_cast<void>(mailbox_->post([] {}));  // wakes the reactor; a full mailbox has done so
}

void Host::wind_up() {
  const Error reason{ErrorCode::kUnavailable, "the daemon is stopping", 0};
  for (const auto& tier : node_.mapped)
    if (tier) tier->leave_bytes();
  std::vector<Session*> all;
  if (store_.keeps()) return pump();  // a stop cannot be told from a restart: the sessions stay with the supervisor
  for (auto& [key, session] : newcomers_) all.push_back(session.get());
  for (auto& [id, session] : sessions_) all.push_back(session.get());
  for (Session* session : all) end(*session, reason);
  pump();
}

Result<void> Host::turn(Duration longest) {
  const Time before = now();
  const Time next = engine_->next_deadline();
  Duration wait = until_next_drain(until_next_look(longest));
  if (next != kNever) wait = std::clamp(next - before, Duration::zero(), wait);
  if (store_.pending()) wait = std::min<Duration>(wait, std::chrono::milliseconds(1));
  if (poll_rings(wait)) wait = Duration::zero();
  const auto woken = ring_->run_once(wait);
  if (!woken) return std::unexpected(woken.error());
  drain_trainers();
  pump();
  look_for_block();
  if (now() - last_sweep_ >= kSweepPeriod) sweep();
  spent_watches_.clear();
  spent_barriers_.clear();
  doomed_.clear();
  return {};
}

void Host::pump() {
  engine_->tick(now());
  while (pump_once()) {
  }
  if (store_.pending())
    if (const auto flushed = store_.flush(); !flushed)
      spdlog::warn("the supervisor takes nothing: {}", flushed.error().message);
}

bool Host::pump_once() {
  const auto transfers = mover_->take_transfers();
  for (const mover::TransferDone& done : transfers) {
    if (!done.result) spdlog::warn("transfer {}: {}", static_cast<std::uint64_t>(done.id), done.result.error().message);
    engine_->transfer_done(now(), done);
  }
  if (std::ranges::any_of(transfers, [](const mover::TransferDone& done) { return !done.result; })) look_for_failures();
  const auto segments = mover_->take_segments();
  for (const mover::SegmentDone& done : segments) segment_done(done);

  engine::Output output = std::exchange(output_memory_, {});
  engine_->take_output(output);
  const bool idle = transfers.empty() && segments.empty() && output.replies.empty() && output.transfers.empty() &&
                    output.segment_orders.empty() && output.gone.empty() && output.pressure.empty();
  if (!output.observations.empty()) pass_on(output.observations);
  tell_of_losses(output.losses);
  for (const mover::SegmentOrder& asked : output.segment_orders) order(asked);
  for (const mover::Transfer& transfer : output.transfers) mover_->start(transfer);
  for (const SessionId id : output.gone) forget_token(id);  // before anybody hears that it is closed
  for (engine::Reply& reply : output.replies) {
    if (auto* status = reply.result ? std::get_if<engine::Status>(&*reply.result) : nullptr) {
      node_.add_devices(*status);
      status->resubmitted_requests = resubmitted_requests_;
    }
    auto waiting = answers_.extract(reply.id);
    const RequestId id = reply.id;
    if (!waiting.empty()) waiting.mapped()(std::move(reply));
    engine_->answered(id);
  }
  for (const SessionId id : output.gone) {
    if (foreseer_) foreseer_->forget(id);
    gone(id);
  }
  if (!output.pressure.empty()) {
    const std::scoped_lock lock(watchers_mutex_);
    for (const engine::Pressure& pressure : output.pressure)
      for (auto& [number, watcher] : watchers_) watcher(pressure);
  }
  output_memory_ = std::move(output);
  return !idle;
}

void Host::sweep() {
  last_sweep_ = now();
  look_for_failures();
  tell_of_pinning();
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
  std::vector<SessionId> idle;
  {
    const std::scoped_lock lock(tokens_mutex_);
    for (const auto& [token, ticket] : tokens_)
      if (now() - ticket.last_used >= idle_max) idle.push_back(ticket.session);
  }
  for (const SessionId id : idle) {
    Session* session = find(id);
    if (session != nullptr && session->connection == nullptr && !session->maps)
      end(*session, {ErrorCode::kDeadlineExceeded, "idle", 0});
  }
  for (auto& [id, session] : sessions_) drain_logs(*session);
  pump();
}

}  // namespace terrace::front
