// SPDX-License-Identifier: Apache-2.0
// Sessions by their numbers.
#pragma once

#include "engine/admission/session.h"
#include "engine/residency/registry.h"

namespace terrace::engine {

class Sessions {
 public:
  explicit Sessions(Registry& registry) : registry_(registry) {}

  Session* find_session(SessionId id);
  Result<Session*> open_session(SessionId id);
  Result<Session*> session_to_write(SessionId id);

 private:
  Registry& registry_;
};

}  // namespace terrace::engine
