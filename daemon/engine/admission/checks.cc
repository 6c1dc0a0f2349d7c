// SPDX-License-Identifier: Apache-2.0
#include "engine/admission/checks.h"

#include <fmt/format.h>

#include <algorithm>

namespace terrace::engine {

// Published where the admission wants it, and to whoever asks, in the mode that it wants it in.
bool Checks::is_there(const Session& session, const Admission& admission, const Tensor& tensor, shm::Mode mode) const {
  if (tensor.published != tiers_[admission.tier].level || !tiers_.at_tier(tensor, admission.tier)) return false;
  if (!session.is_share()) return true;
  if (admission.is(Admission::Kind::kPin)) return !pinned_by_another(session, admission, tensor);
  if (!admission.is(Admission::Kind::kAcquire)) return true;
  return tensor.holder == SessionId{} ? mode == shm::Mode::kRead : tensor.holder == admission.member;
}

// It is where it is wanted, for another member alone, and at rest.
bool Checks::reads_of_another(const Admission& admission, const Tensor& tensor, shm::Mode mode) const {
  return admission.is(Admission::Kind::kAcquire) && mode == shm::Mode::kRead && tensor.holder != SessionId{} &&
         tensor.holder != admission.member && tiers_.at_tier(tensor, admission.tier) &&
         tensor.published == tiers_[admission.tier].level && tensor.idle() && tensor.admission == 0 &&
         tensor.wanted == 0 && !waits_behind(admission, tensor);
}

// A pin is one session's, and ends with it.
bool Checks::pinned_by_another(const Session& session, const Admission& admission, const Tensor& tensor) {
  return session.is_share() && tensor.pinned != Level::kNone && tensor.pinner != admission.member;
}

// Somebody earlier waits for its leases to end.
bool Checks::waits_behind(const Admission& admission, const Tensor& tensor) {
  return tensor.awaited_by != 0 && tensor.awaited_by < admission.id;
}

bool Checks::all_there(const Session& session, const Admission& admission, const std::vector<Slot>& slots) const {
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const Tensor& tensor = session.at(slots[i]);
    if (!is_there(session, admission, tensor, admission.modes[i]) || tensor.wanted != 0 ||
        waits_behind(admission, tensor) || session.word(slots[i]).torn ||
        (tiers_.is_gone(session, tensor) && !words_.leased(session, slots[i])))
      return false;
  }
  return true;
}

bool Checks::reads_content(const Admission& admission, shm::Mode mode) {
  return admission.is(Admission::Kind::kMove) ||
         (admission.is(Admission::Kind::kAcquire) && mode != shm::Mode::kOverwrite);
}

Result<void> Checks::check_content(const Session& session, const Admission& admission, Slot slot,
                                   shm::Mode mode) const {
  const Tensor& tensor = session.at(slot);
  const bool reads = reads_content(admission, mode);
  const bool may_be_new = admission.is(Admission::Kind::kAcquire) && mode == shm::Mode::kWrite;
  if (reads && tensor.lost)
    return fail(ErrorCode::kDataLoss, fmt::format("the bytes of tensor '{}' are lost{}: overwrite it",
                                                  records_.name(session, slot), how_lost(tensor)));
  if (reads && tensor.torn)
    return fail(ErrorCode::kFailedPrecondition,
                fmt::format("tensor '{}' is torn: an overwrite ended before it was whole; overwrite it",
                            records_.name(session, slot)));
  if (reads && !may_be_new && !tensor.written)
    return fail(ErrorCode::kFailedPrecondition,
                fmt::format("tensor '{}' was never written (or its content was given up): write it first",
                            records_.name(session, slot)));
  return {};
}

// For the sentence that a tensor is lost.
std::string Checks::how_lost(const Tensor& tensor) const {
  const Tier& tier = tiers_[TierId{tensor.device}];
  return tensor.lost_in_device && !tier.loss.empty() ? fmt::format(" with {} ({})", tier.options.name, tier.loss) : "";
}

Error Checks::out_of_use(const Session& session, const Admission& admission) const {
  const Tier& tier = tiers_[admission.tier];
  const std::size_t more = admission.slots.size() - 1;
  return {ErrorCode::kUnavailable,
          fmt::format("tensor '{}'{} cannot be had in {}, which does not serve: {}",
                      records_.name(session, admission.slots.front()),
                      more == 0 ? "" : fmt::format(" (and {} more)", more), tier.options.name, tier.loss),
          0};
}

// Whether the admission would have the tensor read from the block tier, or written there.
bool Checks::needs_block(const Admission& admission, const Tensor& tensor, shm::Mode mode) const {
  if (tiers_[admission.tier].level == Level::kBlock) return true;
  const bool overwrites = admission.is(Admission::Kind::kAcquire) && mode == shm::Mode::kOverwrite;
  return !overwrites && tensor.written && !tensor.lost && fastest_valid(tensor) == Level::kBlock;
}

// Nobody waits for more than is needed: who asks for a write alone hears at once that nothing is written.
Result<void> Checks::check_writable(const Session& session, const Admission& admission, Slot slot) const {
  const Tensor& tensor = session.at(slot);
  if (tiers_[admission.tier].level != Level::kBlock || !links_.outage.withholds()) return {};
  const Level shown = tensor.published;
  const bool is_there =
      tensor.is_valid(Level::kBlock) && (shown == Level::kNone || !Words::is_only_one(session, slot, tensor, shown));
  if (is_there) return {};
  return std::unexpected(
      links_.outage.refusal(fmt::format("tensor '{}' stays where it is: ", records_.name(session, slot))));
}

// Its tensors' slots, which stand for as long as no tensor of the session is deleted.
Result<void> Checks::find_set(Session& session, Admission& admission) {
  if (admission.found_lives == session.lives) return {};
  if (admission.slots.capacity() == 0) admission.slots.swap(spare_slots);
  auto found = lookup_.find_all(session, admission.tensors, admission.slots);
  if (found) admission.found_lives = session.lives;
  return found;
}

// A tensor of the set is leased elsewhere, or by others in a way that leaves no room for this. Waits if others alone
// hold it up, and if they cannot be waiting for this session in turn: who waits for others holds nothing in the share.
Result<void> Checks::await_others(Session& session, Admission& admission, Slot slot) {
  Tensor& tensor = session.at(slot);
  const std::string& place = tiers_[tiers_.tier_index(tensor, tensor.published)].leases.name;
  const Member* asks = session.find_member(admission.member);
  const bool waits = session.is_share() && admission.is(Admission::Kind::kAcquire);
  const bool own = asks != nullptr && Session::shows(*asks, tensor) && asks->table.load(slot).leased();
  if (own || !session.is_share())
    return fail(ErrorCode::kFailedPrecondition,
                fmt::format("tensor '{}' is leased at {}: release it first", records_.name(session, slot), place));
  if (!waits)
    return fail(ErrorCode::kFailedPrecondition,
                fmt::format("tensor '{}' is leased at {} by other sessions of share '{}': ask again when they are done",
                            records_.name(session, slot), place, session.share));
  if (holders_.must_not_wait(session, admission.member))
    return fail(ErrorCode::kFailedPrecondition,
                fmt::format("tensor '{}' is leased by other sessions of share '{}', and this one holds leases in it: "
                            "release them before waiting, or take what is used together in one set",
                            records_.name(session, slot), session.share));
  const Handle handle{slot, tensor.incarnation};
  if (std::ranges::find(admission.awaited, handle) == admission.awaited.end()) admission.awaited.push_back(handle);
  if (!waits_behind(admission, tensor)) tensor.awaited_by = admission.id;
  words_.show_wanted(session, slot);
  if (words_.leased(session, slot)) return {};
  wakes_.changed(session);  // it ended a moment ago, and did not ring
  return {};
}

}  // namespace terrace::engine
