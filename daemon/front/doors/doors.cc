// SPDX-License-Identifier: Apache-2.0
#include "front/doors/doors.h"

#include <fmt/format.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <utility>

namespace terrace::front {
namespace {

constexpr int kAcceptsAtOnce = 64;
constexpr int kAcceptsOfQueue = 64;  // times so many: more than a queue holds
constexpr Duration kLookPeriod = std::chrono::seconds(1);

Error no_descriptor() {
  return {ErrorCode::kResourceExhausted, "the daemon has no descriptor left: raise LimitNOFILE", EMFILE};
}

}  // namespace

bool admits(const config::Config& config, const Peer& peer, std::uint32_t uid) {
  if (peer.admin) return uid == 0 || uid == getuid();
  return config.tenants.at(peer.tenant.socket).admits(uid, getuid());
}

Result<void> Doors::add(Listener listener, Peer peer, Adopt adopt, Refuse refuse) {
  auto door = std::make_unique<Door>(Door{std::move(listener), peer, std::move(adopt), std::move(refuse), nullptr});
  if (const auto watched = watch(*door); !watched) return watched;
  doors_.push_back(std::move(door));
  return {};
}

Result<void> Doors::watch(Door& door) {
  auto watch = reactor_.watch(door.listener.descriptor(), POLLIN, [this, &door](unsigned) { accept(door); });
  if (!watch) return std::unexpected(watch.error());
  door.watch = std::move(*watch);
  return {};
}

void Doors::look(Time now) {
  if (now - last_look_ < kLookPeriod) return;
  last_look_ = now;
  for (const auto& door : doors_)
    if (!door->watch || !door->listener.in_place()) renew(*door);
}

void Doors::renew(Door& door) {
  for (int times = 0; times < kAcceptsOfQueue && accept(door); ++times) {  // who came before it went
  }
  auto was = door.listener.renew();
  if (was) {
    if (door.watch) reactor_.spend(std::move(door.watch));
    reactor_.spend(std::make_shared<Fd>(std::move(*was)));  // after its watch
  }
  const Result<void> watched = was ? watch(door) : std::unexpected(was.error());
  if (watched)
    spdlog::warn("somebody removed {} or its lock: it is there again, and nobody who was connected is dropped",
                 door.listener.path());
  else if (!door.told)
    spdlog::error(
        "somebody removed {} or its lock, and it cannot be made again: {}; who is connected stays so, and it is "
        "tried every second",
        door.listener.path(), watched.error().message);
  door.told = !watched;
}

bool Doors::accept(Door& door) {
  for (int count = 0; count < kAcceptsAtOnce; ++count) {
    auto accepted = door.listener.accept();
    if (!accepted) return false;
    Peer peer = door.peer;
    peer.tenant.uid = accepted->credentials.uid;
    peer.pid = accepted->credentials.pid;
    const Result<void> may = accepted->connection ? may_enter(peer) : std::unexpected(no_descriptor());
    if (!may)
      turn_away(door, std::move(*accepted), peer, may.error());
    else if (!door.adopt(std::move(accepted->connection), peer))
      turn_away(door, {}, peer, {ErrorCode::kUnavailable, "it could not be taken: the daemon stops", 0});
  }
  return true;
}

void Doors::turn_away(Door& door, Accepted accepted, const Peer& peer, const Error& why) {
  refusals_.count(peer.tenant.uid, why.code);
  spdlog::warn("a connection of pid {}, uid {} on {} was refused: {}", peer.pid, peer.tenant.uid, door.listener.path(),
               why.message);
  if (door.refuse && accepted.connection) door.refuse(std::move(accepted.connection), why);
}

Result<void> Doors::may_enter(const Peer& peer) const {
  if (!admits(config_, peer, peer.tenant.uid))
    return fail(ErrorCode::kPermissionDenied,
                fmt::format("uid {} is not admitted here: write it into `uids` of the [[tenant]] \"{}\" in the "
                            "daemon's configuration, and restart the daemon",
                            peer.tenant.uid, config_.tenants.at(peer.tenant.socket).name));
  std::size_t connections = 0;
  for (const auto& count : counts_) connections += count();
  if (connections >= config_.limits.connections_max && !peer.admin)  // the administrator always gets in
    return fail(ErrorCode::kResourceExhausted,
                fmt::format("the daemon has {} connections, as many as limits.connections_max and the descriptors that "
                            "it may have allow; try again later",
                            connections));
  return {};
}

}  // namespace terrace::front
