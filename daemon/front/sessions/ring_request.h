// SPDX-License-Identifier: Apache-2.0
// What comes through a session's rings, as requests: pure translation of bytes that an attacker may have written.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "engine/values/request.h"
#include "shm/layout.h"
#include "terrace/error.h"

namespace terrace::front {

// Bytes of the arena that a submission's records take; InvalidArgument for counts beyond the bounds.
Result<std::uint64_t> record_bytes(const shm::Submission& submission);

// The request that `submission` asks for; `block` is the daemon's private copy of its records.
Result<engine::Body> to_request(const shm::Submission& submission, std::span<const std::byte> block);

// What goes back into the block: the handles of a create; nothing for all else.
std::vector<std::byte> result_bytes(const engine::ReplyBody& reply);

}  // namespace terrace::front
