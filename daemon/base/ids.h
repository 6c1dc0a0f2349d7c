// SPDX-License-Identifier: Apache-2.0
// Strong types for what is counted and named, so that one cannot stand where another belongs.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace terrace {

enum class SessionId : std::uint32_t {};   // never used twice in a daemon's life; 0: none
enum class RequestId : std::uint64_t {};   // chosen by the front, unique among the open ones
enum class TransferId : std::uint64_t {};  // chosen by the engine, never used twice
enum class TierId : std::uint8_t {};       // index into the configured tiers, fastest first
enum class Slot : std::uint32_t {};        // a tensor's place in its session's lease table

constexpr auto index(TierId tier) { return static_cast<std::size_t>(tier); }
constexpr auto index(Slot slot) { return static_cast<std::size_t>(slot); }

// A tensor as its session names it: the slot, and which life of the slot (a slot is used again after a delete).
struct Handle {
  Slot slot{};
  std::uint32_t incarnation = 0;
  auto operator<=>(const Handle&) const = default;

  // The one-number form of the wire.
  constexpr std::uint64_t packed() const {
    return (static_cast<std::uint64_t>(incarnation) << 32) | static_cast<std::uint32_t>(slot);
  }
  static constexpr Handle unpack(std::uint64_t packed) {
    return {Slot{static_cast<std::uint32_t>(packed)}, static_cast<std::uint32_t>(packed >> 32)};
  }
};

// How much each configured tenant gets of what several want: 1 to this.
inline constexpr std::uint32_t kTenantWeightMax = 100;

// The security domain: the configured socket a peer came through, and its uid.
struct Tenant {
  std::uint32_t socket = 0;  // index of the configured tenant
  std::uint32_t uid = 0;
  auto operator<=>(const Tenant&) const = default;
};

}  // namespace terrace
