// SPDX-License-Identifier: Apache-2.0
// The daemon's listening sockets, and who may come in by them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "config/config.h"
#include "front/doors/listener.h"
#include "front/gateway/gateway.h"
#include "front/gateway/refusals.h"
#include "front/reactor/reactor.h"
#include "terrace/error.h"

namespace terrace::front {

// Whether a user may connect through the door of `peer`: its tenant's, or the administrator's.
bool admits(const config::Config& config, const Peer& peer, std::uint32_t uid);

// Where those go who came in. Returns false when it cannot take one; the connection is then closed.
using Adopt = std::move_only_function<bool(Fd connection, const Peer& peer)>;
// Who is turned away, and why. Empty: the connection closes without a word.
using Refuse = std::move_only_function<void(Fd connection, const Error& reason)>;

// The reactor thread's. All are borrowed, and outlive it.
class Doors {
 public:
  Doors(Reactor& reactor, const config::Config& config, Refusals& refusals)
      : reactor_(reactor), config_(config), refusals_(refusals) {}

  // Connections of `listener` go to `adopt`, each with its peer: `peer`, and what the kernel says. Errors as Watch's.
  Result<void> add(Listener listener, Peer peer, Adopt adopt, Refuse refuse = {});
  // Connections that count against limits.connections_max, besides those counted so far.
  void count(std::function<std::size_t()> connections) { counts_.push_back(std::move(connections)); }
  // Makes sockets again whose path leads to them no more, a second after the last look at most: whoever is inside stays
  // so. Where that fails it is said once, and tried at each look.
  void look(Time now);
  // Nobody comes in any more.
  void close() { doors_.clear(); }

 private:
  struct Door {
    Listener listener;
    Peer peer;  // tenant and admin of whoever comes through
    Adopt adopt;
    Refuse refuse;
    std::unique_ptr<Watch> watch;
    bool told = false;  // that its socket cannot be made again
  };

  Result<void> watch(Door& door);
  // False: nobody else waits.
  bool accept(Door& door);
  void renew(Door& door);
  void turn_away(Door& door, Accepted accepted, const Peer& peer, const Error& why);
  Result<void> may_enter(const Peer& peer) const;

  Reactor& reactor_;
  const config::Config& config_;
  Refusals& refusals_;
  std::vector<std::unique_ptr<Door>> doors_;
  std::vector<std::function<std::size_t()>> counts_;
  Time last_look_{};
};

}  // namespace terrace::front
