// SPDX-License-Identifier: Apache-2.0
#include "front/doors/doors.h"

#include <fmt/format.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <utility>

namespace terrace::front {
namespace {

constexpr int kAcceptsAtOnce = 64;

}  // namespace

bool admits(const config::Config& config, const Peer& peer, std::uint32_t uid) {
  if (peer.admin) return uid == 0 || uid == getuid();
  return config.tenants.at(peer.tenant.socket).admits(uid, getuid());
}

Result<void> Doors::add(Listener listener, Peer peer, Adopt adopt, Refuse refuse) {
  auto door = std::make_unique<Door>(Door{std::move(listener), peer, std::move(adopt), std::move(refuse), nullptr});
  auto watch = reactor_.watch(door->listener.descriptor(), POLLIN, [this, &door = *door](unsigned) { accept(door); });
  if (!watch) return std::unexpected(watch.error());
  door->watch = std::move(*watch);
  doors_.push_back(std::move(door));
  return {};
}

void Doors::accept(Door& door) {
  for (int count = 0; count < kAcceptsAtOnce; ++count) {
    auto accepted = door.listener.accept();
    if (!accepted) return;
    Peer peer = door.peer;
    peer.tenant.uid = accepted->credentials.uid;
    peer.pid = accepted->credentials.pid;
    if (const auto may = may_enter(peer); !may) {
      if (door.refuse) door.refuse(std::move(accepted->connection), may.error());
    } else if (!door.adopt(std::move(accepted->connection), peer)) {
      spdlog::warn("a connection on {} could not be taken", door.listener.path());
    }
  }
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
