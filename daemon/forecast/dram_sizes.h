// SPDX-License-Identifier: Apache-2.0
// The sizes of DRAM that a plan looks at. Internal to forecast.
#pragma once

#include <cstdint>
#include <vector>

namespace terrace::forecast {

// `asked` and `own_bytes` (unless that is kUnlimited), ascending, each once. Where none is asked: what modules come in,
// a power of two of GB or one and a half, from a sixteenth of `content_bytes` to the first that holds all of it.
std::vector<std::uint64_t> dram_sizes(std::vector<std::uint64_t> asked, std::uint64_t own_bytes,
                                      std::uint64_t content_bytes);

}  // namespace terrace::forecast
