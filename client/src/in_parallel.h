// SPDX-License-Identifier: Apache-2.0
// Work that the system does page by page, which one processor alone takes long for.
#pragma once

#include <cstddef>
#include <functional>

namespace terrace::client {

// At most so many threads, the calling one among them.
inline constexpr std::size_t kThreadsAtOnce = 8;

// work(0) to work(count - 1), each once, by as many threads at once as there are processors that the calling one may
// run on (whose processors and signals they have). Returns when all are done.
void in_parallel(std::size_t count, const std::function<void(std::size_t)>& work);

}  // namespace terrace::client
