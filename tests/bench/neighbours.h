// SPDX-License-Identifier: Apache-2.0
// Whether this machine is quiet enough to be measured.
#pragma once

#include <string>
#include <vector>

namespace terrace::bench {

// What else is at work, from a second's look at /proc: other terraced processes that compute, processors that are busy,
// and disks that have something to do. One sentence each, with what was seen; none: it is quiet.
std::vector<std::string> neighbours_at_work();

}  // namespace terrace::bench
