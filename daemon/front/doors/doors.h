// SPDX-License-Identifier: Apache-2.0
// Who may come in, and how the daemon hears that it is to go: the same whether it serves or holds.
#pragma once

#include <cstdint>

#include "base/fd.h"
#include "config/config.h"
#include "front/gateway/gateway.h"
#include "terrace/error.h"

namespace terrace::front {

// Whether a user may connect through the door of `peer`: its tenant's, or the administrator's.
bool admits(const config::Config& config, const Peer& peer, std::uint32_t uid);

// A signalfd of SIGTERM and SIGINT, which must be blocked. ResourceExhausted: no descriptor is left.
Result<Fd> stop_signals();

}  // namespace terrace::front
