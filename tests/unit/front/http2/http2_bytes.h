// SPDX-License-Identifier: Apache-2.0
// HTTP/2's frames as a client would write them (RFC 9113, 4.1), or as none would.
#pragma once

#include <cstdint>
#include <string>

namespace terrace::front {

inline const std::string kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

inline constexpr std::uint8_t kData = 0;
inline constexpr std::uint8_t kHeaders = 1;
inline constexpr std::uint8_t kReset = 3;
inline constexpr std::uint8_t kSettings = 4;
inline constexpr std::uint8_t kPing = 6;
inline constexpr std::uint8_t kWindowUpdate = 8;
inline constexpr std::uint8_t kContinuation = 9;

inline constexpr std::uint8_t kAcknowledges = 1;
inline constexpr std::uint8_t kEndsStream = 1;
inline constexpr std::uint8_t kEndsHeaders = 4;

// The header of a frame that claims to have so many bytes.
inline std::string frame_header(std::uint32_t bytes, std::uint8_t type, std::uint8_t flags, std::uint32_t stream) {
  std::string header;
  for (const int shift : {16, 8, 0}) header += static_cast<char>(bytes >> shift);
  header += {static_cast<char>(type), static_cast<char>(flags)};
  for (const int shift : {24, 16, 8, 0}) header += static_cast<char>(stream >> shift);
  return header;
}

inline std::string frame(std::uint8_t type, std::uint8_t flags, std::uint32_t stream, const std::string& payload = "") {
  return frame_header(static_cast<std::uint32_t>(payload.size()), type, flags, stream) + payload;
}

}  // namespace terrace::front
