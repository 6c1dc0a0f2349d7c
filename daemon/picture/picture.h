// SPDX-License-Identifier: Apache-2.0
// Pictures, drawn by a Python with matplotlib: nothing of ours links a library that draws.
#pragma once

#include <filesystem>
#include <string>

#include "terrace/error.h"

namespace terrace::picture {

// $TERRACE_PYTHON, else the Python of the environment that this program was installed into, or of the tree that it was
// built in, else "python3".
std::string default_python();

// Why no picture can be drawn with this Python, with what to install; empty: one can be.
std::string cannot_draw(const std::string& python);

// Why no file can be written there, before anything is computed for it; empty: one can be.
std::string cannot_write(const std::filesystem::path& file);

// Runs `script` with `file` as sys.argv[1] and `json` on its standard input, and waits for its end. kUnavailable with
// the last line of what it said where it cannot be run or fails.
Result<void> draw(const std::string& script, const std::string& json, const std::filesystem::path& file,
                  const std::string& python);

}  // namespace terrace::picture
