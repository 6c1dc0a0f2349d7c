// SPDX-License-Identifier: Apache-2.0
#include "engine/links/outage.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/check.h"

namespace terrace::engine {
namespace {

// What the system says of a file system, a limit or a volume, and not of a place in it.
constexpr std::array kOfNoPlace = {ENOSPC, EDQUOT, EFBIG,  EROFS,    ENODEV,    ENXIO,
                                   EPERM,  EACCES, ESTALE, ENOTCONN, ESHUTDOWN, ENOMEM};

bool is_of_no_place(const Error& error) {
  return std::ranges::find(kOfNoPlace, error.system_error) != kOfNoPlace.end();
}

}  // namespace

Outage::Verdict Outage::failed(Time now, Way way, std::uint64_t place, const Error& error) {
  if (state_ != State::kNone) {
    if (state_ == State::kTrying && way == Way::kWrite) put_off(now);
    return Verdict::kGoesOn;
  }
  shows_at_its_place_ = is_of_no_place(error);
  std::vector<std::uint64_t>& places = failed_places_[static_cast<std::size_t>(way)];
  if (std::ranges::find(places, place) == places.end()) places.push_back(place);
  if (!shows_at_its_place_ && places.size() < kPlacesMax) return Verdict::kRegion;
  begin(now, error);
  return Verdict::kBegins;
}

bool Outage::succeeded(Time now, Way way) {
  failed_places_[static_cast<std::size_t>(way)].clear();
  if (state_ != State::kTrying || way == Way::kRead) return false;  // of a write that was under way as it began, too
  end(now);
  return true;
}

void Outage::end(Time now) {
  TERRACE_CHECK(lasts());
  state_ = State::kNone;
  failed_places_ = {};
  ended_ = now;
}

std::string Outage::note() const {
  return fmt::format(
      "nothing can be written to the block tier for now ({}); it is tried again by itself, and all copies "
      "stay where they are until then",
      why_.message);
}

Error Outage::refusal(const std::string& what) const {
  const bool full = why_.code == ErrorCode::kResourceExhausted;
  return {full ? ErrorCode::kResourceExhausted : ErrorCode::kUnavailable, what + note(), why_.system_error};
}

// One soon after another is the same once more: its tries go on where that one's stopped.
void Outage::begin(Time now, const Error& error) {
  const bool again = ended_ != kNever && now - ended_ < pauses_.longest;
  if (!again) pause_ = pauses_.first;
  why_ = error;
  since_ = now;
  ++count_;
  put_off(now);
}

void Outage::put_off(Time now) {
  state_ = State::kOut;
  next_try_ = now + pause_;
  pause_ = std::min(2 * pause_, pauses_.longest);
}

}  // namespace terrace::engine
