// SPDX-License-Identifier: Apache-2.0
// Whether a folder can hold a block file, found by writing there as the block tier does.
#pragma once

#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "terrace/error.h"

namespace terrace::doctor {

// As much as the block tier moves at a time.
inline constexpr std::uint64_t kTrialBytes = kMiB;

// Reserves room for a file that is open with O_DIRECT, writes a pattern into it, has the drive keep it, reads it back,
// and compares. FailedPrecondition names the step that failed, with system_error; DataLoss: other bytes came back.
Result<void> try_block(int fd);

// The same with a nameless file in `folder`. Leaves nothing there.
Result<void> try_block(const std::string& folder);

}  // namespace terrace::doctor
