// SPDX-License-Identifier: Apache-2.0
// Writing a workload as JSON Lines.
#pragma once

#include <iosfwd>

#include "workload/workload.h"

namespace terrace::workload {

// What reader.h reads back as the same value: the header, all tensors, then the runs with the end of each step behind
// its last run. The same workload gives the same bytes. Strings must be UTF-8. Errors are the stream's.
void write(const Workload& workload, std::ostream& out);

}  // namespace terrace::workload
