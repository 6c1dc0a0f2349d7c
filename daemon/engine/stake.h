// SPDX-License-Identifier: Apache-2.0
// What would be lost with segments that a successor cannot take back, asked before anything is given up.
#pragma once

#include <cstddef>
#include <map>
#include <span>

#include "engine/catalog/memory.h"
#include "engine/engine.h"

namespace terrace::engine {

// How many tensors of each space (a session's, or a share's) have their bytes in these segments alone, by the catalog
// and by what any survivor has written since, or may still write under a lease. Nothing is changed, and the catalog may
// be damaged: then the answer may be any.
std::map<SessionId, std::size_t> tensors_at_stake(const CatalogMemory& catalog, std::span<const Survivor> survivors,
                                                  std::span<const LostSegment> segments);

// From here on nobody leases there without an engine, so that what is counted then stays so.
void lend_at_stake(const CatalogMemory& catalog, std::span<const Survivor> survivors,
                   std::span<const LostSegment> segments);

}  // namespace terrace::engine
