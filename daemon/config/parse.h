// SPDX-License-Identifier: Apache-2.0
// Reading a configuration from TOML.
#pragma once

#include <string>
#include <string_view>

#include "config/config.h"
#include "config/problems.h"
#include "terrace/error.h"

namespace terrace::config {

// The longest path that a Unix socket can have, without the NUL (unix(7): sun_path has 108 bytes).
inline constexpr std::size_t kSocketPathBytesMax = 107;
// More tiers than any machine has kinds of memory; TierId counts them in a byte.
inline constexpr std::size_t kTiersMax = 16;

// Where sockets lie unless configured: /run/terrace for root, $XDG_RUNTIME_DIR/terrace for others; empty where that is
// not set. Not created.
std::string default_runtime_dir();

// A configuration as it was read, and what is wrong with it so far.
struct Draft {
  Config config;
  Problems problems;
};

// Reads `text`; `source` is its name in messages. Sockets without a path get one in `runtime_dir` (empty: they must be
// configured). The draft's problems have a line for everything found, each with file, line, key, what is wrong and what
// would be right. The error, an InvalidArgument with its line, is for what is no TOML at all.
// Nothing is looked up on the machine: see resolve().
Result<Draft> read(std::string_view text, std::string_view source, const std::string& runtime_dir);

// read() of the file at `path`. NotFound, PermissionDenied or InvalidArgument if it cannot be read.
Result<Draft> load(const std::string& path, const std::string& runtime_dir = default_runtime_dir());

// read(), for whoever has no machine to set it against: everything wrong is the error.
Result<Config> parse(std::string_view text, std::string_view source, const std::string& runtime_dir);

}  // namespace terrace::config
