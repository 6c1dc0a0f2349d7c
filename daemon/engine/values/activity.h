// SPDX-License-Identifier: Apache-2.0
// What is being done to a tensor.
#pragma once

#include <cstdint>

namespace terrace::engine {

// At most one transfer touches a tensor at a time; of kLanding alone it is not one of this engine's.
enum class Activity : std::uint8_t {
  kIdle,
  kFetching,  // towards a place where somebody wants it; the word is not resident
  kEvicting,  // written back, to give up the copy afterwards; the word is claimed
  kCleaning,  // written back while it stays resident
  kSliding,   // to another extent of the same tier; the word is claimed
  kProving,   // what it had was lost: its home is tried with a pattern before anything is written there again
  kLanding,   // no transfer: a former daemon's read may still land in its extents; the word is not resident
};

}  // namespace terrace::engine
