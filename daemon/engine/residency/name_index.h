// SPDX-License-Identifier: Apache-2.0
// Slots by name: open addressing with linear probing and no tombstones (Knuth, The Art of Computer Programming, volume
// 3, 6.4, algorithms L and R). It keeps the slots alone, 4 bytes each in a table that is at most three quarters full;
// whoever asks says what the slots are called, which must not change while they are here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/ids.h"

namespace terrace::engine {

class NameIndex {
 public:
  std::size_t size() const { return size_; }

  // `name_of`: Slot -> std::string_view, of every slot here.
  template <typename NameOf>
  std::optional<Slot> find(std::string_view name, const NameOf& name_of) const {
    if (places_.empty()) return std::nullopt;
    for (std::size_t at = home(name); places_[at] != kFree; at = next(at))
      if (name_of(Slot{places_[at]}) == name) return Slot{places_[at]};
    return std::nullopt;
  }

  // False, and nothing done: another one has its name.
  template <typename NameOf>
  bool insert(Slot slot, const NameOf& name_of) {
    if (find(name_of(slot), name_of)) return false;
    if (4 * (size_ + 1) > 3 * places_.size()) grow(name_of);
    place(slot, name_of);
    ++size_;
    return true;
  }

  // What stands behind it closes up. Aborts if it is not here.
  template <typename NameOf>
  void erase(Slot slot, const NameOf& name_of) {
    std::size_t hole = home(name_of(slot));
    while (places_[hole] != static_cast<std::uint32_t>(slot)) {
      TERRACE_CHECK(places_[hole] != kFree);
      hole = next(hole);
    }
    for (std::size_t at = next(hole); places_[at] != kFree; at = next(at)) {
      const std::size_t away = distance(home(name_of(Slot{places_[at]})), at);
      if (away < distance(hole, at)) continue;  // it would come to lie before its home
      places_[hole] = places_[at];
      hole = at;
    }
    places_[hole] = kFree;
    --size_;
  }

 private:
  static constexpr std::uint32_t kFree = UINT32_MAX;
  static constexpr std::size_t kPlacesMin = 16;

  std::size_t home(std::string_view name) const { return std::hash<std::string_view>{}(name) & (places_.size() - 1); }
  std::size_t next(std::size_t at) const { return (at + 1) & (places_.size() - 1); }
  std::size_t distance(std::size_t from, std::size_t to) const { return (to - from) & (places_.size() - 1); }

  template <typename NameOf>
  void place(Slot slot, const NameOf& name_of) {
    std::size_t at = home(name_of(slot));
    while (places_[at] != kFree) at = next(at);
    places_[at] = static_cast<std::uint32_t>(slot);
  }

  template <typename NameOf>
  void grow(const NameOf& name_of) {
    const std::vector<std::uint32_t> before = std::move(places_);
    places_.assign(before.empty() ? kPlacesMin : 2 * before.size(), kFree);
    for (const std::uint32_t slot : before)
      if (slot != kFree) place(Slot{slot}, name_of);
  }

  std::vector<std::uint32_t> places_;  // a power of two of them
  std::size_t size_ = 0;
};

}  // namespace terrace::engine
