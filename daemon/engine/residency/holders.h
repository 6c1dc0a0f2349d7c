// SPDX-License-Identifier: Apache-2.0
// Who holds leases in a session, and who must not wait for whom.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/residency/holdings.h"
#include "engine/residency/records.h"

namespace terrace::engine {

class Holders {
 public:
  explicit Holders(Records& records) : records_(records) {}

  std::uint64_t leases_of(const Holdings& session, const Member& member) const;
  bool must_not_wait(Holdings& session, SessionId member_id) const;
  bool others_hold(Holdings& session, SessionId member_id, const std::vector<Slot>& slots) const;
  std::string holders(const Holdings& session, const std::vector<Handle>& handles) const;

 private:
  Records& records_;
};

}  // namespace terrace::engine
