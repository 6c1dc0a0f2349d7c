// SPDX-License-Identifier: Apache-2.0
#include "engine/residency/trials.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/bytes.h"
#include "engine/values/planted.h"

namespace terrace::engine {
namespace {

constexpr std::uint64_t kTrialBytesMax = 4 * kMiB;
constexpr std::uint32_t kSetAsideMax = 8;  // free regions, of an outage: so many different places are tried

}  // namespace

void Trials::prepare(Tensor* tensor) {
  set_aside_ = 0;
  const bool at_its_place = links_.outage.shows_at_its_place() && tensor != nullptr;
  if (!at_its_place || !copies_.set_home_aside(*tensor)) set_free_aside();
}

// A free region goes out of use, to be tried. False: there is none.
bool Trials::set_free_aside() {
  const std::uint64_t bytes = std::min(kTrialBytesMax, block_.space.largest_free_bytes());
  if (bytes == 0 || set_aside_ == kSetAsideMax) return false;
  const tier::Extent free = *block_.space.allocate(bytes);
  block_.space.free(free);
  block_.space.retire(free);
  ledger_.retired.push_back(free);
  ++set_aside_;
  return true;
}

bool Trials::has_link_to_itself() const {
  return std::ranges::all_of(std::array{mover::LinkKind::kBlockRead, mover::LinkKind::kBlockWrite},
                             [this](mover::LinkKind kind) {
                               const mover::Link link{kind, 0};
                               return links_.scheduler.queued(link) == 0 && links_.scheduler.in_flight(link) == 0;
                             });
}

Time Trials::next() const {
  if (under_way_ || links_.former_at_work) return kNever;
  if (links_.outage.lasts()) return planted(Plant::kOutageUnended) ? kNever : links_.outage.next_try();
  if (ledger_.retired.empty() || !has_link_to_itself()) return kNever;
  return next_;
}

void Trials::look() {
  if (ledger_.retired.size() > seen_)
    next_ = next_ == kNever ? turn_.now + pause_ : std::max(next_, turn_.now + pause_);
  seen_ = ledger_.retired.size();
  if (next() > turn_.now) return;
  if (!ledger_.retired.empty()) return start();
  links_.outage.try_by_whatever_comes();
}

// The last region, from its begin.
void Trials::start() {
  const tier::Extent region = ledger_.retired.back();
  const tier::Extent part{region.offset, std::min(region.bytes, kTrialBytesMax)};
  mover::Transfer transfer;
  transfer.id = TransferId{links_.next_transfer++};
  transfer.link = {mover::LinkKind::kBlockWrite, 0};
  transfer.urgency = mover::Class::kCleaning;
  transfer.prove = true;
  transfer.tensor = ledger_.next_number++;
  transfer.bytes = part.bytes;
  transfer.to = {.tier = tiers_.block, .session = {}, .pieces = tier::Pieces(part)};
  transfer.from = transfer.to;
  links_.write_budget.spend(turn_.now, part.bytes);
  links_.flights.add(transfer.id, {.activity = Activity::kProving,
                                   .from = Level::kNone,
                                   .to = Level::kBlock,
                                   .link = transfer.link,
                                   .bytes = part.bytes});
  links_.scheduler.push({}, {}, transfer);
  under_way_ = {part, links_.outage.lasts()};
  if (planted(Plant::kGivenBackUntried)) give_back(part);
}

bool Trials::done(const Result<void>& result) {
  const Trial trial = *std::exchange(under_way_, std::nullopt);
  const bool ends = trial.decides && links_.outage.lasts();
  if (result) {
    if (!planted(Plant::kGivenBackUntried)) give_back(trial.part);
    next_ = turn_.now;
    if (ends) links_.outage.end(turn_.now);
    return ends;
  }
  if (ends) {
    links_.outage.try_failed(turn_.now);
    if (!links_.outage.shows_at_its_place() && !set_free_aside()) pass_over(trial.part);
    return false;
  }
  pass_over(trial.part);
  pause_ = std::min(2 * pause_, pauses_.longest);
  next_ = turn_.now + pause_;
  return false;
}

void Trials::give_back(tier::Extent part) {
  const auto region = std::ranges::find(ledger_.retired, part.offset, &tier::Extent::offset);
  TERRACE_CHECK(region != ledger_.retired.end() && region->bytes >= part.bytes);
  ledger_.change_retired(region);
  *region = {part.end(), region->bytes - part.bytes};
  if (region->bytes == 0) ledger_.retired.erase(region);
  seen_ = std::min(seen_, ledger_.retired.size());
  block_.space.take_back(part);
  pause_ = pauses_.first;
}

// It failed: all others are tried before it, the rest of its region too.
void Trials::pass_over(tier::Extent part) {
  const auto region = std::ranges::find(ledger_.retired, part.offset, &tier::Extent::offset);
  TERRACE_CHECK(region != ledger_.retired.end() && region->bytes >= part.bytes);
  ledger_.change_retired(ledger_.retired.begin());
  *region = {part.end(), region->bytes - part.bytes};
  if (region->bytes == 0) ledger_.retired.erase(region);
  ledger_.retired.insert(ledger_.retired.begin(), part);
  seen_ = std::max(seen_, ledger_.retired.size());
}

}  // namespace terrace::engine
