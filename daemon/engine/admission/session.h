// SPDX-License-Identifier: Apache-2.0
// A session, and what its trainers have asked for.
#pragma once

#include <bitset>
#include <cstdint>
#include <deque>
#include <list>
#include <utility>

#include "engine/admission/admission.h"
#include "engine/catalog/records.h"
#include "engine/steps/course.h"

namespace terrace::engine {

struct Session : Course {
  std::list<Admission> admissions;                          // in order of arrival
  std::deque<std::pair<Handle, std::uint32_t>> prefetches;  // not begun: tensor, place
  std::uint32_t prefetches_running = 0;

  // The tiers in which an admission waits for room. planned_too: a plan's own, too.
  std::bitset<kTiersMax> awaited(bool planned_too) const {
    std::bitset<kTiersMax> tiers;
    for (const Admission& admission : admissions)
      if (admission.phase == Admission::Phase::kWaiting && (planned_too || !admission.planned) &&
          (admission.block == Admission::Block::kSpace || admission.block == Admission::Block::kLeases))
        tiers.set(index(admission.tier));
    return tiers;
  }
};

// Whatever is registered is a session.
inline Session& session_of(Holdings& registered) { return static_cast<Session&>(registered); }
inline const Session& session_of(const Holdings& registered) { return static_cast<const Session&>(registered); }

}  // namespace terrace::engine
