// SPDX-License-Identifier: Apache-2.0
// Reading small files whole: those of /proc and /sys, and a configuration.
#pragma once

#include <cstdint>
#include <expected>
#include <optional>
#include <string>
#include <string_view>

namespace terrace::topology {

// The whole file, without the newline at its end; errno if it cannot be read.
std::expected<std::string, int> read_text(const std::string& path);

// The whole file as one number; nothing if it is none ("max", "-1").
std::optional<std::uint64_t> read_number(const std::string& path);

// The rest of the line of `text` that begins with `key`, without blanks before it.
std::optional<std::string_view> line_after(std::string_view text, std::string_view key);

// The number that `text` begins with, after blanks.
std::optional<std::uint64_t> leading_number(std::string_view text, int base = 10);

}  // namespace terrace::topology
