// SPDX-License-Identifier: Apache-2.0
// Errors as values, to Python's exceptions (terrace/_errors.py).
#pragma once

#include <nanobind/nanobind.h>

#include <utility>

#include "terrace/error.h"

namespace terrace::python {

// Throws the exception class of the error's code. The caller holds the GIL.
[[noreturn]] void raise(const Error& error);

// The value, or the exception. The caller holds the GIL.
template <typename T>
T value_or_raise(Result<T> result) {
  if (!result) raise(result.error());
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

}  // namespace terrace::python
