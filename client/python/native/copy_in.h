// SPDX-License-Identifier: Apache-2.0
// Copies of what is laid away.
#pragma once

#include <cstddef>

namespace terrace::python {

// As memcpy, but past the caches where the processor can: what is laid away is not looked at soon, its old bytes need
// not be read first, and what the caches hold stays there. Once it returns, all threads and processes see the bytes.
void copy_in(std::byte* to, const std::byte* from, std::size_t size);

}  // namespace terrace::python
