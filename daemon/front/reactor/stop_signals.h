// SPDX-License-Identifier: Apache-2.0
// How the daemon hears that it is to go: the same whether it serves or holds.
#pragma once

#include "base/fd.h"
#include "terrace/error.h"

namespace terrace::front {

// A signalfd of SIGTERM and SIGINT, which must be blocked. ResourceExhausted: no descriptor is left.
Result<Fd> stop_signals();

}  // namespace terrace::front
