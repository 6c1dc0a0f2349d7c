// SPDX-License-Identifier: Apache-2.0
// The memory of a session, or of a share: what the front knows of its segments, which one trainer maps, or several.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/ids.h"
#include "mover/transfer.h"

namespace terrace::front {

struct Space {
  // A segment that is to go once every trainer that maps it has said that it does not any more.
  struct Retiring {
    mover::SegmentOrder order;
    std::vector<SessionId> asked;
  };

  std::vector<std::uint64_t> mapped_bytes;  // by tier: of the segments that stay, from offset 0 on
  std::vector<Retiring> retiring;
  // Seams that trainers are to map, by tier and offset: where their pages lie.
  std::map<std::pair<std::size_t, std::uint64_t>, std::vector<tier::Extent>> seams;
  std::vector<std::string> kept;  // names of the segments that the supervisor keeps
  // By tier and offset: segments that trainers may have mapped, and this daemon cannot.
  std::map<std::pair<std::size_t, std::uint64_t>, Fd> lost;
};

}  // namespace terrace::front
