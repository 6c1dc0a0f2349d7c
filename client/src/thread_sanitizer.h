// SPDX-License-Identifier: Apache-2.0
// What ThreadSanitizer cannot see: memory that one thread of a trainer had, and the daemon gave to another. The daemon
// takes it only after the first lease ended, and says so by words that it maps elsewhere, or in another process.
#pragma once

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace terrace::client {

// `at`: any address of the session's own. What begins comes after everything that ended before.
inline void lease_ends([[maybe_unused]] void* at) noexcept {
#if defined(__SANITIZE_THREAD__)
  __tsan_release(at);
#endif
}

inline void lease_begins([[maybe_unused]] void* at) noexcept {
#if defined(__SANITIZE_THREAD__)
  __tsan_acquire(at);
#endif
}

}  // namespace terrace::client
