// SPDX-License-Identifier: Apache-2.0
// For programs that cannot go on without what they ask for.
#pragma once

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <type_traits>
#include <utility>

#include "terrace/error.h"

namespace terrace {

// What was asked for; else ends the program with its name, `what` and why not.
template <typename T>
T must(Result<T> result, const char* what) {
  if (!result) {
    std::fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what, result.error().message.c_str());
    std::exit(1);
  }
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

}  // namespace terrace
