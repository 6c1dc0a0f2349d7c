// SPDX-License-Identifier: Apache-2.0
// A fuzzer's bytes, taken one number after the other; what is not there any more is zero.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

namespace terrace::fuzz {

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : left_(std::as_bytes(std::span(data, size))) {}

  bool empty() const { return left_.empty(); }
  template <typename T>
  T take() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    const auto bytes = span(sizeof value);
    if (!bytes.empty()) std::memcpy(static_cast<void*>(&value), bytes.data(), bytes.size());
    return value;
  }
  std::uint8_t byte() { return take<std::uint8_t>(); }
  // A number below `bound`, of one or two bytes.
  std::size_t below(std::size_t bound) { return (bound <= 256 ? byte() : take<std::uint16_t>()) % bound; }
  // At most `most` bytes.
  std::span<const std::byte> span(std::size_t most) {
    const auto taken = left_.first(std::min(most, left_.size()));
    left_ = left_.subspan(taken.size());
    return taken;
  }
  // A number as it stands, or one of those at which things break.
  std::uint64_t number() {
    switch (byte() % 8) {
      case 0:
        return 0;
      case 1:
        return UINT64_MAX;
      case 2:
        return UINT64_MAX - take<std::uint16_t>();
      case 3:
        return std::uint64_t{1} << byte() % 64;
      case 4:
        return byte();
      case 5:
        return take<std::uint32_t>();
      case 6:
        return std::uint64_t{take<std::uint16_t>()} << 12;  // pages
      default:
        return take<std::uint64_t>();
    }
  }

 private:
  std::span<const std::byte> left_;
};

}  // namespace terrace::fuzz
