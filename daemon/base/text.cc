// SPDX-License-Identifier: Apache-2.0
#include "base/text.h"

#include <cstddef>
#include <cstdint>

namespace terrace {
namespace {

std::uint8_t byte_at(std::string_view text, std::size_t at) { return static_cast<std::uint8_t>(text[at]); }

// Bytes of the character that `text` begins with; 0: none.
std::size_t character_bytes(std::string_view text) {
  const std::uint8_t first = byte_at(text, 0);
  if (first < 0x80) return 1;
  const std::size_t bytes = first >= 0xC2 && first < 0xE0   ? 2
                            : first >= 0xE0 && first < 0xF0 ? 3
                            : first >= 0xF0 && first < 0xF5 ? 4
                                                            : 0;
  if (bytes == 0 || text.size() < bytes) return 0;
  for (std::size_t i = 1; i < bytes; ++i)
    if ((byte_at(text, i) & 0xC0) != 0x80) return 0;
  const std::uint8_t second = byte_at(text, 1);
  const bool too_long = (first == 0xE0 && second < 0xA0) || (first == 0xF0 && second < 0x90);
  const bool no_character = (first == 0xED && second >= 0xA0) || (first == 0xF4 && second >= 0x90);
  return too_long || no_character ? 0 : bytes;
}

bool is_control(std::string_view character) {
  const std::uint8_t first = byte_at(character, 0);
  return first < 0x20 || first == 0x7F || (first == 0xC2 && byte_at(character, 1) < 0xA0);
}

}  // namespace

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t bytes = character_bytes(text);
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

std::string printable(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t bytes = character_bytes(text);
    const std::string_view character = text.substr(0, bytes == 0 ? 1 : bytes);
    if (bytes == 0 || is_control(character))
      out += '?';
    else
      out += character;
    text.remove_prefix(character.size());
  }
  return out;
}

}  // namespace terrace
