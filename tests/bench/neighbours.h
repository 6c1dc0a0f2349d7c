// SPDX-License-Identifier: Apache-2.0
// Whether this machine is quiet enough to be measured.
#pragma once

#include <string>
#include <vector>

namespace terrace::bench {

// What else is at work, from a second's look at /proc: other terraced processes that compute, processors that are busy,
// and tasks that wait for disks. One sentence each, with what was seen; none: it is quiet.
std::vector<std::string> neighbours_at_work();

}  // namespace terrace::bench
