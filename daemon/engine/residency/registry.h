// SPDX-License-Identifier: Apache-2.0
// All sessions of the node, by number.
#pragma once

#include <map>
#include <memory>

#include "base/ids.h"
#include "engine/residency/holdings.h"

namespace terrace::engine {

struct Registry {
  std::map<SessionId, std::unique_ptr<Holdings>> all;
  bool draining = false;                   // no more of them are opened
  std::map<SessionId, SessionId> part_of;  // members of shares, and the share

  // By its own number, or by that of a member of a share.
  Holdings* find(SessionId id) const {
    if (!part_of.empty())
      if (const auto part = part_of.find(id); part != part_of.end()) id = part->second;
    const auto found = all.find(id);
    return found == all.end() ? nullptr : found->second.get();
  }
};

}  // namespace terrace::engine
