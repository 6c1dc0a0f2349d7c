// SPDX-License-Identifier: Apache-2.0
// What a trainer says first on data.sock, as a request.
#pragma once

#include "engine/values/request.h"
#include "shm/message.h"
#include "terrace/error.h"

namespace terrace::front {

// The session that is asked for, but for its tenant, process, token and table. InvalidArgument: more guarantees than
// there are places. The label is people's: what they could not print is '?'.
Result<engine::OpenSession> to_open(const shm::Hello& hello);

}  // namespace terrace::front
