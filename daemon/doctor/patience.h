// SPDX-License-Identifier: Apache-2.0
// Work that may never end, such as on a drive that does not answer.
#pragma once

#include <chrono>
#include <functional>

namespace terrace::doctor {

// Whether `work` ends within `limit`. A call that waits for a drive cannot be broken off, so that a process of its own
// does the work; one that does not end is killed, and goes when the drive lets it. True, too, where no process can be
// made. Call it before there are threads.
bool ends_within(std::chrono::milliseconds limit, const std::function<void()>& work);

}  // namespace terrace::doctor
