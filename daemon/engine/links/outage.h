// SPDX-License-Identifier: Apache-2.0
// A time in which the block tier takes no writes, for a reason that is not one region's: its file system is full or
// read-only, its volume is gone, its device fails wherever it is written. A bad region is another thing: one place
// fails, and others work. During an outage nothing is written but tries, with growing pauses between them.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/time.h"
#include "engine/values/options.h"
#include "terrace/error.h"

namespace terrace::engine {

class Outage {
 public:
  // Distinct places whose writes, or whose reads, fail one after the other, with none that succeeds between them: then
  // it is the device.
  static constexpr std::size_t kPlacesMax = 3;
  enum class Way : std::uint8_t { kRead, kWrite };

  // `pauses`: between tries.
  explicit Outage(Pauses pauses) : pauses_(pauses), pause_(pauses.first) {}

  enum class Verdict : std::uint8_t {
    kRegion,  // the place is not to be trusted
    kBegins,  // the place says nothing: an outage began
    kGoesOn,  // nor here: it lasts
  };
  // A read or a write at the tier's offset `place` failed, by the device: what that says.
  Verdict failed(Time now, Way way, std::uint64_t place, const Error& error);
  // One went well. True: an outage ended by it.
  bool succeeded(Time now, Way way);
  // A try that was due failed.
  void try_failed(Time now) { put_off(now); }
  // There is no place to try: whatever is to be written next is the try.
  void try_by_whatever_comes() { state_ = State::kTrying; }
  // A try, or a write by whatever_comes, went well.
  void end(Time now);

  // Whether nothing is to be written.
  bool withholds() const { return state_ == State::kOut; }
  // Whether it lasts, be it that a write is tried just now.
  bool lasts() const { return state_ != State::kNone; }
  // When the next try is due; kNever if none is.
  Time next_try() const { return state_ == State::kOut ? next_try_ : kNever; }
  // Of the last one: the error that it began with, when that was, and whether only the place that failed can show its
  // end: a file system that has no room may well take what was written there before.
  const Error& why() const { return why_; }
  Time since() const { return since_; }
  bool shows_at_its_place() const { return shows_at_its_place_; }
  // For who waited in vain, and for who is refused by it.
  std::string note() const;
  Error refusal(const std::string& what) const;
  // How many there were.
  std::uint64_t count() const { return count_; }

 private:
  enum class State : std::uint8_t { kNone, kOut, kTrying };

  void begin(Time now, const Error& error);
  void put_off(Time now);

  Pauses pauses_;
  State state_ = State::kNone;
  std::array<std::vector<std::uint64_t>, 2> failed_places_;  // by Way; one after the other
  Duration pause_;
  Time next_try_ = kNever;
  Time since_{};
  Time ended_ = kNever;  // the last one; kNever: there was none
  Error why_;
  bool shows_at_its_place_ = false;
  std::uint64_t count_ = 0;
};

}  // namespace terrace::engine
