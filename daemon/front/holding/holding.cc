// SPDX-License-Identifier: Apache-2.0
#include "front/holding/holding.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <limits>
#include <utility>
#include <vector>

#include "front/doors/doors.h"
#include "front/doors/listener.h"
#include "front/grpc/server.h"
#include "front/reactor/service_notify.h"
#include "front/reactor/stop_signals.h"

namespace terrace::front {
namespace {

using Clock = std::chrono::steady_clock;

// Of what may go by. As long as a supervisor takes for a life, so that it starts the next one at once.
constexpr std::chrono::seconds kTryAgainAfter{10};
constexpr std::chrono::milliseconds kLookPeriod{1000};  // between looks at the doors

// Answers everything in the same way, on the caller's thread.
class HoldingGateway final : public Gateway {
 public:
  HoldingGateway(NodeFacts facts, Error why) : facts_(std::move(facts)), why_(std::move(why)) {}

  RequestId post(engine::Request, Answer answer) override {
    const RequestId id{++last_request_};
    answer({id, std::unexpected(why_)});
    return id;
  }
  void cancel(RequestId) override {}
  void open(const Peer&, engine::OpenSession, Time, OpenAnswer answer) override { answer(std::unexpected(why_)); }
  Result<SessionId> authenticate(const Token&, const Peer&) override { return std::unexpected(why_); }
  std::uint64_t watch(PressureWatcher) override { return 0; }
  void unwatch(std::uint64_t) override {}
  bool run(std::move_only_function<void()>) override { return false; }
  Time now() const override { return clock_.now(); }
  const NodeFacts& facts() const override { return facts_; }
  std::byte* address(SessionId, const engine::Placement&) override { return nullptr; }

 private:
  NodeFacts facts_;
  Error why_;
  MonotonicClock clock_;
  std::atomic<std::uint64_t> last_request_ = 0;
};

struct Door {
  Listener listener;
  Peer peer;
  GrpcServer* server;
  bool told = false;  // that its socket cannot be made again
};

void accept(const config::Config& config, Door& door) {
  while (auto accepted = door.listener.accept()) {
    Peer peer = door.peer;
    peer.tenant.uid = accepted->credentials.uid;
    peer.pid = accepted->credentials.pid;
    const bool full = !accepted->connection || door.server->connections() >= config.limits.connections_max;
    const auto refuse = [&](const std::string& why) {
      spdlog::warn("a connection of pid {}, uid {} on {} was refused: {}", peer.pid, peer.tenant.uid,
                   door.listener.path(), why);
    };
    if (full)
      refuse("there are as many as there may be");
    else if (!admits(config, peer, peer.tenant.uid))
      refuse("this uid is not admitted here");
    else if (const auto adopted = door.server->adopt(std::move(accepted->connection), peer); !adopted)
      refuse(adopted.error().message);
  }
}

Result<std::vector<Door>> open_doors(const config::Config& config, GrpcServer& tenants, GrpcServer& admin) {
  std::vector<Door> doors;
  for (std::uint32_t tenant = 0; tenant < config.tenants.size(); ++tenant) {
    auto listener = Listener::bind(config.tenants[tenant].grpc_socket, SOCK_STREAM, config.tenants[tenant].door_mode());
    if (!listener) return std::unexpected(listener.error());
    Peer peer;
    peer.tenant.socket = tenant;
    doors.push_back(Door{std::move(*listener), peer, &tenants});
  }
  auto listener = Listener::bind(config.sockets.admin, SOCK_STREAM, 0600);
  if (!listener) return std::unexpected(listener.error());
  Peer administrator;
  administrator.admin = true;
  doors.push_back(Door{std::move(*listener), administrator, &admin});
  return doors;
}

// The block files' locks, as far as they are free: whoever else came by would write over what the catalog says is
// there.
std::vector<Fd> lock_block_files(const config::Config& config) {
  std::vector<Fd> files;
  for (const config::TierConfig& tier : config.tiers)
    for (const std::string& path : tier.paths) {
      Fd file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
      if (file && ::flock(file.get(), LOCK_EX | LOCK_NB) == 0) files.push_back(std::move(file));
    }
  return files;
}

// As poll() has it.
int milliseconds_until(Clock::time_point limit) {
  if (limit == Clock::time_point::max()) return std::numeric_limits<int>::max();
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(limit - Clock::now());
  return static_cast<int>(std::max<std::int64_t>(left.count(), 0));
}

// Somebody may have cleaned the folder.
void renew(Door& door) {
  if (door.listener.in_place()) return;
  const auto renewed = door.listener.renew();
  if (!renewed && !std::exchange(door.told, true))
    spdlog::error("{} was removed, and cannot be made again: {}", door.listener.path(), renewed.error().message);
}

// Until a signal to stop, or the limit. Wakes for each connection, in time for the watchdog, and to look at the doors.
void wait_for_replacement(const config::Config& config, std::vector<Door>& doors, const Fd& signals,
                          ServiceNotify& notify, Clock::time_point limit) {
  using std::chrono::milliseconds;
  const auto period = std::chrono::duration_cast<milliseconds>(notify.watchdog_period());
  const milliseconds wait = period.count() > 0 ? std::clamp(period, milliseconds(1), kLookPeriod) : kLookPeriod;
  while (true) {
    const int left_ms = milliseconds_until(limit);
    if (left_ms == 0) return;
    std::vector<pollfd> polls{{.fd = signals.get(), .events = POLLIN, .revents = 0}};
    for (const Door& door : doors) polls.push_back({.fd = door.listener.descriptor(), .events = POLLIN, .revents = 0});
    const int ready = ::poll(polls.data(), polls.size(), std::min(left_ms, static_cast<int>(wait.count())));
    if (ready < 0 && errno != EINTR) return spdlog::error("waiting for connections failed: errno {}", errno);
    if (period.count() > 0) notify.send("WATCHDOG=1");
    std::ranges::for_each(doors, renew);
    spdlog::default_logger_raw()->flush();  // what was left out is told once it may be
    if (ready <= 0) continue;
    if (polls[0].revents != 0) return;
    for (std::size_t door = 0; door < doors.size(); ++door)
      if (polls[door + 1].revents != 0) accept(config, doors[door]);
  }
}

}  // namespace

// What the system refused may go by; what was found in the inheritance does not.
bool is_to_be_held(const Error& error) {
  if (error.system_error != 0) return false;
  return error.code == ErrorCode::kFailedPrecondition || error.code == ErrorCode::kInvalidArgument ||
         error.code == ErrorCode::kDataLoss || may_go_by(error);
}

bool may_go_by(const Error& error) { return error.system_error == 0 && error.code == ErrorCode::kResourceExhausted; }

Result<void> hold(const config::Config& config, NodeFacts facts, const Error& why) {
  const Error answer{ErrorCode::kUnavailable,
                     fmt::format("this daemon does not serve, and the supervisor holds everything that a former one "
                                 "left: {}; {}, or discard it with --discard",
                                 why.message,
                                 may_go_by(why) ? fmt::format("it is tried again every {} s", kTryAgainAfter.count())
                                                : "start one that can go on with it"),
                     why.system_error};
  HoldingGateway gateway(std::move(facts), answer);
  GrpcOptions options;
  for (const config::TenantConfig& tenant : config.tenants) options.tenant_names.push_back(tenant.name);
  auto tenants = GrpcServer::create(gateway, options);
  if (!tenants) return std::unexpected(tenants.error());
  options.admin = true;
  options.ask_successor = [answer]() -> Result<std::string> { return std::unexpected(answer); };
  auto admin = GrpcServer::create(gateway, options);
  if (!admin) return std::unexpected(admin.error());
  (*tenants)->set_serving(false);
  (*admin)->set_serving(false);
  auto signals = stop_signals();
  if (!signals) return std::unexpected(signals.error());
  auto doors = open_doors(config, **tenants, **admin);
  if (!doors) return std::unexpected(doors.error());

  const std::vector<Fd> block_files = lock_block_files(config);
  ServiceNotify notify;
  notify.send("READY=1\nSTATUS=not serving: " + why.message);
  spdlog::error("{}", answer.message);
  const auto limit = may_go_by(why) ? Clock::now() + kTryAgainAfter : Clock::time_point::max();
  wait_for_replacement(config, *doors, *signals, notify, limit);
  notify.send("STOPPING=1");
  doors->clear();
  const std::chrono::milliseconds patience(config.limits.stop_timeout_ms / 4);
  (*tenants)->shutdown(patience);
  (*admin)->shutdown(patience);
  return {};
}

}  // namespace terrace::front
