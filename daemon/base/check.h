// SPDX-License-Identifier: Apache-2.0
// Programmer errors abort, in release builds too.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace terrace {

// Called first, if set; may throw. For the simulator, which says with what seed the check failed, and goes on.
inline void (*on_check_failed)(const char* condition, const char* file, int line) = nullptr;

[[noreturn]] inline void check_failed(const char* condition, const char* file, int line) {
  if (on_check_failed != nullptr) on_check_failed(condition, file, line);
  std::fprintf(stderr, "%s:%d: check failed: %s\n", file, line, condition);
  std::abort();
}

}  // namespace terrace

// Aborts with the place and the condition if it does not hold. For what only a defect of ours can break; bad input from
// outside is an Error.
#define TERRACE_CHECK(condition) \
  (static_cast<bool>(condition) ? static_cast<void>(0) : ::terrace::check_failed(#condition, __FILE__, __LINE__))
