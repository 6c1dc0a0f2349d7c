// SPDX-License-Identifier: Apache-2.0
// The rows as a picture.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "bench/row.h"
#include "terrace/error.h"

namespace terrace::bench {

// Why no picture can be drawn with this Python, with what to install; empty: one can be.
std::string cannot_plot(const std::string& python);

// Draws each row's ratio against its bar, and the reference's interval, into a PNG. By a Python with matplotlib.
Result<void> plot(const std::vector<Row>& rows, const std::filesystem::path& file, const std::string& python);

}  // namespace terrace::bench
