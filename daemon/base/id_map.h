// SPDX-License-Identifier: Apache-2.0
// What is under way, by number: open addressing with linear probing and no tombstones, as in name_index.h. Entries come
// and go with every request: none is an allocation where there were as many before.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"

namespace terrace {

// Not thread-safe.
template <typename Id, typename Value>
class IdMap {
 public:
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  // Entries that there is memory for; at most half of them are used.
  std::size_t capacity() const { return places_.capacity(); }
  bool contains(Id id) const { return find(id) != nullptr; }

  // Null: it is not here. Stands until another one comes or goes.
  const Value* find(Id id) const {
    if (empty()) return nullptr;
    const Place& place = places_[place_of(id)];
    return place.taken ? &place.value : nullptr;
  }
  Value* find(Id id) { return const_cast<Value*>(std::as_const(*this).find(id)); }

  // Aborts if it is here.
  void add(Id id, Value value) {
    if (2 * (size_ + 1) > places_.size()) grow();
    Place& place = places_[place_of(id)];
    TERRACE_CHECK(!place.taken);
    place = {id, true, std::move(value)};
    ++size_;
  }

  // None: it is not here. What stands behind it closes up.
  std::optional<Value> take(Id id) {
    if (empty()) return std::nullopt;
    std::size_t hole = place_of(id);
    if (!places_[hole].taken) return std::nullopt;
    std::optional<Value> value = std::move(places_[hole].value);
    for (std::size_t at = next(hole); places_[at].taken; at = next(at)) {
      if (distance(home(places_[at].id), at) < distance(hole, at)) continue;  // it would come to lie before its home
      places_[hole] = std::move(places_[at]);
      hole = at;
    }
    places_[hole].taken = false;
    if (--size_ == 0 && places_.size() > kPlacesKept) places_ = std::vector<Place>();
    return value;
  }

 private:
  static constexpr std::size_t kPlacesMin = 16;
  static constexpr std::size_t kPlacesKept = 1024;  // while nothing is here: a set may have been a large one
  static constexpr std::uint64_t kSpread = 0x9e3779b97f4a7c15;  // 2^64 by the golden ratio (Knuth, volume 3, 6.4)

  struct Place {
    Id id{};
    bool taken = false;
    Value value{};
  };

  std::size_t home(Id id) const { return static_cast<std::uint64_t>(id) * kSpread >> shift_; }
  std::size_t next(std::size_t at) const { return (at + 1) & (places_.size() - 1); }
  std::size_t distance(std::size_t from, std::size_t to) const { return (to - from) & (places_.size() - 1); }

  // Where it is, or would be.
  std::size_t place_of(Id id) const {
    std::size_t at = home(id);
    while (places_[at].taken && places_[at].id != id) at = next(at);
    return at;
  }

  void grow() {
    std::vector<Place> before = std::move(places_);
    places_ = std::vector<Place>(before.empty() ? kPlacesMin : 2 * before.size());
    shift_ = 64 - std::countr_zero(places_.size());
    for (Place& place : before)
      if (place.taken) places_[place_of(place.id)] = std::move(place);
  }

  std::vector<Place> places_;  // a power of two of them, at most half of which are taken
  std::size_t size_ = 0;
  int shift_ = 0;  // leaves a place's number of what is spread
};

}  // namespace terrace
