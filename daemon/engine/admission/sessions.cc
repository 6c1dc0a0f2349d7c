// SPDX-License-Identifier: Apache-2.0
#include "engine/admission/sessions.h"

#include <fmt/format.h>

namespace terrace::engine {

// By its own number, or by that of a member of a share.
Session* Sessions::find_session(SessionId id) {
  Holdings* const found = registry_.find(id);
  return found == nullptr ? nullptr : &session_of(*found);
}

Result<Session*> Sessions::open_session(SessionId id) {
  Session* session = find_session(id);
  if (session == nullptr || session->life != Session::Life::kOpen || session->find_member(id) == nullptr)
    return fail(ErrorCode::kNotFound,
                fmt::format("session {} is not open: open one first", static_cast<std::uint32_t>(id)));
  return session;
}

Result<Session*> Sessions::session_to_write(SessionId id) {
  auto session = open_session(id);
  if (!session || (*session)->find_member(id)->writes) return session;
  return fail(ErrorCode::kPermissionDenied,
              fmt::format("this session opened share '{}' for reading: open it for writing", (*session)->share));
}

}  // namespace terrace::engine
