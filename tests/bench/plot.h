// SPDX-License-Identifier: Apache-2.0
// The rows as a picture.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "bench/row.h"
#include "terrace/error.h"

namespace terrace::bench {

// Draws each row's ratio against its bar, and the reference's interval, into a PNG. By a Python with matplotlib.
Result<void> plot(const std::vector<Row>& rows, const std::filesystem::path& file, const std::string& python);

}  // namespace terrace::bench
