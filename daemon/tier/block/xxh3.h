// SPDX-License-Identifier: Apache-2.0
// XXH3 of the library, by what the processor at hand has: the library's own functions are built for what all of its
// kind have (SSE2), and take half as long again. The sums are the same.
#pragma once

#include <xxhash.h>
#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>
#endif
