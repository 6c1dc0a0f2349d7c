// SPDX-License-Identifier: Apache-2.0
// Telling the daemon of leases that were taken without it: each thread borrows one of the session's logs.
#pragma once

#include <cstdint>

#include "shm/region.h"
#include "shm/word.h"

namespace terrace::client {

// Appends one fast lease to the calling thread's log of the session `serial`, whose region this is. Without a log (all
// are lent) it is only counted.
void log_access(std::uint64_t serial, const shm::RegionView& region, std::uint32_t slot, shm::Mode mode);

}  // namespace terrace::client
