// SPDX-License-Identifier: Apache-2.0
#include "front/host.h"

#include <spdlog/spdlog.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "front/doors/listener.h"
#include "front/restore/restore.h"
#include "front/sessions/busy_poll.h"

namespace terrace::front {
namespace {

constexpr Duration kSweepPeriod = std::chrono::milliseconds(200);
constexpr Duration kStoppingPeriod = std::chrono::milliseconds(20);

}  // namespace

Host::Host(const config::Config& config, Parts parts, NodeFacts facts, service::DescriptorStore store)
    : config_(config),
      node_(std::move(parts.node)),
      reactor_(std::move(parts.reactor)),
      workers_(std::move(parts.workers)),
      mover_(std::move(parts.mover)),
      loop_(*reactor_, *mover_, *this),
      keeper_(*reactor_, loop_, std::move(store)),
      block_(node_, loop_, notify_),
      failures_(node_),
      logs_(loop_, node_.options.observe),
      sessions_(*reactor_, loop_, tokens_, refusals_, logs_, polled_),
      segments_(node_, loop_, keeper_, sessions_),
      rings_(*reactor_, loop_, sessions_, polled_, std::chrono::milliseconds(config_.limits.request_timeout_ms)),
      arrivals_({.node = node_,
                 .reactor = *reactor_,
                 .loop = loop_,
                 .keeper = keeper_,
                 .sessions = sessions_,
                 .segments = segments_,
                 .rings = rings_,
                 .slots = config_.limits.tensors_per_session_max,
                 .request_timeout = std::chrono::milliseconds(config_.limits.request_timeout_ms)}),
      training_(*reactor_, loop_, sessions_),
      entrance_({.node = node_,
                 .reactor = *reactor_,
                 .loop = loop_,
                 .tokens = tokens_,
                 .refusals = refusals_,
                 .watchers = watchers_,
                 .sessions = sessions_,
                 .arrivals = arrivals_},
                std::move(facts)),
      doors_(*reactor_, config_, refusals_) {}

// Before what is here goes: the mover's end still turns the ring.
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
  std::unique_ptr<Host> host(new Host(config, std::move(parts), std::move(facts), std::move(inheritance.store)));
  if (const auto started = host->start(std::move(inheritance.adopted)); !started)
    return std::unexpected(started.error());
  return host;
}

Result<void> Host::start(service::Adopted adopted) {
  Restore restore({.config = config_,
                   .node = node_,
                   .loop = loop_,
                   .keeper = keeper_,
                   .home = home_,
                   .block = block_,
                   .failures = failures_,
                   .sessions = sessions_,
                   .segments = segments_,
                   .rings = rings_},
                  std::move(adopted));
  if (const auto made = restore.make_engine(); !made) return made;
  failures_.look(loop_.engine(), loop_.now());
  if (node_.options.observe) training_.learn(machine_of(node_.options, config_.links));
  if (const auto watched = restore.watch_sessions(); !watched) return watched;
  return open_doors();
}

Result<void> Host::open_doors() {
  doors_.count([this] { return sessions_.size(); });
  for (std::uint32_t tenant = 0; tenant < config_.tenants.size(); ++tenant) {
    const config::TenantConfig& its = config_.tenants[tenant];
    auto listener = Listener::bind(its.data_socket, SOCK_SEQPACKET, its.door_mode());
    if (!listener) return std::unexpected(listener.error());
    const auto greet = [this](Fd connection, const Peer& peer) {
      arrivals_.greet(std::move(connection), peer);
      return true;
    };
    const auto added = doors_.add(std::move(*listener), Peer{.tenant = {.socket = tenant}}, greet, turn_away);
    if (!added) return std::unexpected(added.error());
  }
  return {};
}

// A gRPC client that is turned away sees the connection close, and tries again.
Result<void> Host::listen_stream(const std::string& path, mode_t mode, Peer peer, Adopt adopt) {
  auto listener = Listener::bind(path, SOCK_STREAM, mode);
  if (!listener) return std::unexpected(listener.error());
  return doors_.add(std::move(*listener), peer, std::move(adopt));
}

Result<void> Host::serve(std::function<void()> stopping) {
  block_.begin_serving();
  polled_.allow(may_busy_poll());
  spdlog::info("serving on {}", config_.tenants.front().data_socket);
  while (!reactor_->stopping())
    if (const auto turned = turn(kSweepPeriod); !turned) return turned;
  notify_.send("STOPPING=1\nSTATUS=stopping");
  spdlog::info("stopping");
  doors_.close();
  return wind_up(std::move(stopping));
}

Result<void> Host::wind_up(std::function<void()> stopping) {
  std::atomic<bool> fronts_stopped = false;
  std::jthread fronts([&] {
    stopping();
    fronts_stopped = true;
  });
  const Time limit = loop_.now() + std::chrono::milliseconds(config_.limits.stop_timeout_ms);
  bool ended = false;
  while (loop_.now() < limit &&
         !(ended && fronts_stopped && (keeper_.keeps() || sessions_.size() == 0) && mover_->in_flight() == 0)) {
    if (const auto turned = turn(kStoppingPeriod); !turned) return turned;
    if (fronts_stopped && !ended) {
      end_sessions();
      ended = true;
    }
  }
  if (!ended) end_sessions();
  while (!fronts_stopped)  // its calls still need their answers
    if (const auto turned = turn(kStoppingPeriod); !turned) return turned;
  reactor_->close();
  return {};
}

// Where they are kept they stay with the supervisor: a stop cannot be told from a restart.
void Host::end_sessions() {
  for (const auto& tier : node_.mapped)
    if (tier) tier->leave_bytes();
  if (!keeper_.keeps()) sessions_.end_all({ErrorCode::kUnavailable, "the daemon is stopping", 0});
  loop_.pump();
}

Result<void> Host::turn(Duration longest) {
  const Time before = loop_.now();
  const Time next = loop_.engine().next_deadline();
  Duration wait = training_.until_next_drain(block_.until_next_look(longest));
  if (next != kNever) wait = std::clamp(next - before, Duration::zero(), wait);
  if (keeper_.pending()) wait = std::min<Duration>(wait, std::chrono::milliseconds(1));
  if (rings_.poll(wait)) wait = Duration::zero();
  if (const auto woken = reactor_->wait(wait); !woken) return woken;
  training_.drain();
  loop_.pump();
  block_.look();
  if (loop_.now() - last_sweep_ >= kSweepPeriod) sweep();
  reactor_->bury();
  return {};
}

void Host::sweep() {
  last_sweep_ = loop_.now();
  failures_.look(loop_.engine(), loop_.now());
  failures_.tell_of_pinning(mover_->facts());
  notify_.feed_watchdog(loop_.now());
  doors_.look(loop_.now());
  spdlog::default_logger_raw()->flush();  // what was left out is told once it may be
  sessions_.end_late(std::chrono::milliseconds(config_.limits.session_idle_timeout_ms));
  sessions_.drain_all_logs();
  loop_.pump();
}

void Host::gone(SessionId id) {
  training_.forget(id);
  if (auto session = sessions_.take_gone(id)) {
    for (const std::string& name : session->kept) keeper_.drop(name);
    segments_.left(id, session->space);
    sessions_.spend(std::move(session));
  }
  segments_.gone(id);
}

void Host::complete(engine::Status& status) {
  node_.add_devices(status);
  status.resubmitted_requests = rings_.resubmitted();
  status.refusals = refusals_.status();
}

}  // namespace terrace::front
