// SPDX-License-Identifier: Apache-2.0
// What whoever supervises this process says in its environment.
#pragma once

#include <cstdint>
#include <optional>

#include "base/time.h"

namespace terrace::service {

// The variable as a decimal number; none where it is not set or is anything else. Not while another thread changes the
// environment.
std::optional<std::uint64_t> number_from_environment(const char* name);

// How often WATCHDOG=1 is due: half of WATCHDOG_USEC. Zero: no watchdog, or WATCHDOG_PID means another process.
Duration watchdog_period_from_environment();

}  // namespace terrace::service
