// SPDX-License-Identifier: Apache-2.0
#include "topology/text_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>

#include "base/fd.h"

namespace terrace::topology {

std::expected<std::string, int> read_text(const std::string& path) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return std::unexpected(errno);
  std::string text;
  std::array<char, 4096> buffer;
  while (true) {
    const ssize_t count = ::read(file.get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return std::unexpected(errno);
    if (count == 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(count));
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

std::optional<std::uint64_t> leading_number(std::string_view text, int base) {
  const std::size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return std::nullopt;
  std::uint64_t value = 0;
  const auto [rest, error] = std::from_chars(text.data() + begin, text.data() + text.size(), value, base);
  if (error != std::errc()) return std::nullopt;
  return value;
}

std::optional<std::uint64_t> read_number(const std::string& path) {
  const std::expected<std::string, int> text = read_text(path);
  return text ? leading_number(*text) : std::nullopt;
}

std::optional<std::string_view> line_after(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    if (line.starts_with(key)) {
      line.remove_prefix(key.size());
      const std::size_t begin = line.find_first_not_of(" \t");
      return begin == std::string_view::npos ? std::string_view() : line.substr(begin);
    }
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return std::nullopt;
}

}  // namespace terrace::topology
