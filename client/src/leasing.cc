// SPDX-License-Identifier: Apache-2.0
// Taking leases: in the shared table where the copy is there, through the daemon otherwise.
#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>

#include "access_log.h"
#include "answers.h"
#include "session.h"
#include "thread_sanitizer.h"

namespace terrace::client {
namespace {

static_assert(static_cast<int>(Mode::kRead) == static_cast<int>(shm::Mode::kRead) &&
              static_cast<int>(Mode::kWrite) == static_cast<int>(shm::Mode::kWrite) &&
              static_cast<int>(Mode::kOverwrite) == static_cast<int>(shm::Mode::kOverwrite));
static_assert(Place::host().number() == shm::kPlaceHost && Place::device(0).number() == shm::kPlaceDevice0 &&
              Place::block().number() == shm::kPlaceBlock);

constexpr shm::Mode wire(Mode mode) { return static_cast<shm::Mode>(mode); }
constexpr std::uint32_t slot_of(std::uint64_t handle) { return static_cast<std::uint32_t>(handle); }
constexpr std::uint32_t incarnation_of(std::uint64_t handle) { return static_cast<std::uint32_t>(handle >> 32); }
constexpr std::uint64_t by_slot(std::uint64_t handle) { return std::rotl(handle, 32); }
Mode mode_at(const LeaseOptions& options, std::size_t at) {
  return options.modes.empty() ? options.mode : options.modes[at];
}
bool writes(const LeaseOptions& options) {
  const auto one_writes = [](Mode mode) { return mode != Mode::kRead; };
  return options.modes.empty() ? one_writes(options.mode) : std::ranges::any_of(options.modes, one_writes);
}

std::unexpected<Error> destroyed(const Tensor& tensor) {
  return fail(ErrorCode::kAborted, "tensor \"" + tensor.name() + "\" was destroyed: create it again");
}

}  // namespace

Result<void> Session::check_lives(std::span<const Tensor> tensors) const {
  for (const Tensor& tensor : tensors) {
    const shm::TableSlot& slot = region_.table[slot_of(tensor.handle())];
    const auto word = shm::Word::unpack(slot.word.load(std::memory_order_acquire));
    if (word.incarnation != incarnation_of(tensor.handle())) return destroyed(tensor);
  }
  return {};
}

Result<void> Session::check_place(Place place) const {
  if (range(place.number()) != nullptr) return {};
  std::string offered;
  for (const PlaceOffer& offer : offers()) offered += (offered.empty() ? "" : ", ") + offer.place.name();
  return fail(ErrorCode::kNotFound, "no place " + place.name() + ": this session can lease in " + offered);
}

Result<void> Session::check_options(const LeaseOptions& options, std::size_t tensors) const {
  if (!options.modes.empty() && options.modes.size() != tensors)
    return fail(ErrorCode::kInvalidArgument, std::to_string(options.modes.size()) + " modes for " +
                                                 std::to_string(tensors) +
                                                 " tensors: give one for all of them, or one for each");
  if (options.passing && writes(options))
    return fail(ErrorCode::kInvalidArgument,
                "a lease to write is a use, and not passing: ask for one to read, or leave it out");
  return check_place(options.place);
}

Result<void> Session::settle(std::span<const Tensor> tensors, std::chrono::nanoseconds timeout) {
  const Result<std::vector<std::uint64_t>> handles = handles_of(tensors);
  if (!handles) return std::unexpected(handles.error());
  if (calls_.settled(*handles, deadline_after(timeout))) return {};
  if (calls_.waits_ended()) return client_closed();
  return fail(ErrorCode::kDeadlineExceeded,
              "an overwrite of tensor '" + tensors.front().name() +
                  (tensors.size() == 1 ? "'" : "', or of another one of the set,") +
                  " was given up before it was granted, and may yet be, which would tear it: wait longer, or wait for "
                  "what was asked for instead of dropping it");
}

Result<LeaseOptions> Session::settle_first(std::span<const Tensor> tensors, const LeaseOptions& options) {
  const Deadline deadline = deadline_after(options.timeout);
  if (Result<void> done = usable(); !done) return std::unexpected(done.error());
  if (Result<void> done = settle(tensors, options.timeout); !done) return std::unexpected(done.error());
  LeaseOptions left = options;
  left.timeout =
      std::max(std::chrono::nanoseconds(deadline - std::chrono::steady_clock::now()), std::chrono::nanoseconds(0));
  return left;
}

shm::Outcome Session::try_fast(std::uint64_t handle, Place place, shm::Mode mode) {
  shm::TableSlot& slot = region_.table[slot_of(handle)];
  const shm::Step step = shm::acquire(slot.word, incarnation_of(handle), mode);
  if (step.outcome != shm::Outcome::kDone) return step.outcome;
  if (slot.place == place.number()) return shm::Outcome::kDone;
  give_back(handle, mode);
  return shm::Outcome::kAskDaemon;
}

Result<Lease> Session::acquire(const Tensor& tensor, const LeaseOptions& options) {
  const std::span<const Tensor> set(&tensor, 1);
  Result<void> checked = usable();
  if (checked) checked = check_options(options, 1);
  if (!checked) return std::unexpected(checked.error());
  if (!owns(tensor)) return std::unexpected(handles_of(set).error());
  if (calls_.has_given_up_overwrites()) {
    const Result<LeaseOptions> left = settle_first(set, options);
    return left ? acquire_now(tensor, *left) : std::unexpected(left.error());
  }
  return acquire_now(tensor, options);
}

Result<Lease> Session::acquire_now(const Tensor& tensor, const LeaseOptions& options) {
  const std::span<const Tensor> set(&tensor, 1);
  const Mode mode = mode_at(options, 0);
  switch (try_fast(tensor.handle(), options.place, wire(mode))) {
    case shm::Outcome::kDone:
      if (!options.passing) log_access(serial_, region_, slot_of(tensor.handle()), wire(mode));
      return make_lease(tensor, options, mode);
    case shm::Outcome::kStale:
      return destroyed(tensor);
    default:
      break;
  }
  Result<std::vector<Lease>> leases = acquire_slowly(set, options);
  if (!leases) return std::unexpected(leases.error());
  let_go();  // it has a hold of its own
  return std::move(leases->front());
}

// A lease for a moment: without one the copy's place is not to be read.
Result<bool> Session::resident(const Tensor& tensor, Place place) {
  const std::span<const Tensor> set(&tensor, 1);
  Result<void> checked = check_place(place);
  if (!checked) return std::unexpected(checked.error());
  if (const auto handles = handles_of(set); !handles) return std::unexpected(handles.error());
  switch (try_fast(tensor.handle(), place, shm::Mode::kRead)) {
    case shm::Outcome::kDone:
      give_back(tensor.handle(), shm::Mode::kRead);
      return true;
    case shm::Outcome::kStale:
      return destroyed(tensor);
    default:
      return false;
  }
}

Result<std::vector<Lease>> Session::acquire(std::span<const Tensor> tensors, const LeaseOptions& options) {
  if (calls_.has_given_up_overwrites()) {
    const Result<LeaseOptions> left = settle_first(tensors, options);
    return left ? acquire_now(tensors, *left) : std::unexpected(left.error());
  }
  return acquire_now(tensors, options);
}

Result<std::vector<Lease>> Session::acquire_now(std::span<const Tensor> tensors, const LeaseOptions& options) {
  const Result<bool> fast = try_fast_set(tensors, options);
  if (!fast) return std::unexpected(fast.error());
  if (*fast) return make_leases(tensors, options);
  return acquire_slowly(tensors, options);
}

Result<std::vector<Lease>> Session::acquire_slowly(std::span<const Tensor> tensors, const LeaseOptions& options) {
  const Result<std::shared_ptr<Call>> call = submit_acquire(tensors, options, true);
  if (!call) return std::unexpected(call.error());
  if (Result<void> granted = finish(*call); !granted) return std::unexpected(granted.error());
  return make_leases(tensors, options);
}

Result<std::shared_ptr<Call>> Session::submit_acquire(std::span<const Tensor> tensors, const LeaseOptions& options,
                                                      bool waits_for_room) {
  const Result<std::vector<std::uint64_t>> handles = handles_of(tensors);
  if (!handles) return std::unexpected(handles.error());
  if (Result<void> live = check_lives(tensors); !live) return std::unexpected(live.error());
  std::vector<shm::Mode> modes;
  modes.reserve(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) modes.push_back(wire(mode_at(options, i)));
  return submit({.operation = shm::Operation::kAcquire,
                 .place = options.place.number(),
                 .flags = options.passing ? shm::kPassing : 0,
                 .timeout = options.timeout,
                 .handles = *handles,
                 .modes = modes,
                 .waits_for_room = waits_for_room});
}

Pending<std::vector<Lease>> Session::acquire_async(std::span<const Tensor> tensors, const LeaseOptions& options) {
  using Answer = Result<std::vector<Lease>>;
  const auto at_once = [](Answer answer) {
    return Pending<std::vector<Lease>>(std::make_unique<KnownAnswer<std::vector<Lease>>>(std::move(answer)));
  };
  if (calls_.has_given_up_overwrites() && !settle(tensors, {}))
    return Pending<std::vector<Lease>>(
        std::make_unique<SettledFirst>(*this, std::vector<Tensor>(tensors.begin(), tensors.end()), options));
  const Result<bool> fast = try_fast_set(tensors, options);
  if (!fast) return at_once(std::unexpected(fast.error()));
  if (*fast) return at_once(make_leases(tensors, options));
  Result<std::shared_ptr<Call>> call = submit_acquire(tensors, options, false);
  if (!call) return at_once(std::unexpected(call.error()));
  return Pending<std::vector<Lease>>(std::make_unique<LeasesAnswer>(
      *this, std::move(*call), std::vector<Tensor>(tensors.begin(), tensors.end()), options));
}

// In id order, so that two threads' sets meet at their first common tensor and neither holds what the other waits for.
Result<bool> Session::try_fast_set(std::span<const Tensor> tensors, const LeaseOptions& options) {
  if (Result<void> known = check_options(options, tensors.size()); !known) return std::unexpected(known.error());
  const Result<std::vector<std::uint64_t>> handles = handles_of(tensors);
  if (!handles) return std::unexpected(handles.error());
  std::vector<std::uint32_t> order(handles->size());
  std::iota(order.begin(), order.end(), 0);
  const auto handle_at = [&](std::uint32_t at) { return (*handles)[at]; };
  std::ranges::sort(order, {}, [&](std::uint32_t at) { return by_slot(handle_at(at)); });
  if (const auto twice = std::ranges::adjacent_find(order, {}, handle_at); twice != order.end()) {
    return fail(ErrorCode::kInvalidArgument,
                "tensor '" + tensors[*twice].name() + "' is twice in the set: name it once");
  }
  std::size_t taken = 0;
  for (; taken < order.size(); ++taken) {
    const std::uint32_t at = order[taken];
    const shm::Outcome outcome = try_fast(handle_at(at), options.place, wire(mode_at(options, at)));
    if (outcome == shm::Outcome::kDone) continue;
    for (std::size_t i = taken; i-- > 0;) give_back(handle_at(order[i]), wire(mode_at(options, order[i])));
    if (outcome == shm::Outcome::kStale) return destroyed(tensors[at]);
    return false;
  }
  if (options.passing) return true;
  for (const std::uint32_t at : order) log_access(serial_, region_, slot_of(handle_at(at)), wire(mode_at(options, at)));
  return true;
}

Result<std::vector<Lease>> Session::make_leases(std::span<const Tensor> tensors, const LeaseOptions& options) {
  std::vector<Lease> leases;
  leases.reserve(tensors.size());
  std::optional<Error> wrong;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Mode mode = mode_at(options, i);
    if (wrong) {
      give_up(tensors[i].handle(), wire(mode));
      continue;
    }
    Result<Lease> lease = make_lease(tensors[i], options, mode);
    if (lease) {
      hold();
      leases.push_back(std::move(*lease));
    } else {
      wrong = lease.error();
    }
  }
  if (!wrong) return leases;
  for (Lease& lease : leases) static_cast<void>(lease.abandon());
  return std::unexpected(*wrong);
}

Result<Lease> Session::make_lease(const Tensor& tensor, const LeaseOptions& options, Mode mode) {
  const shm::TableSlot& slot = region_.table[slot_of(tensor.handle())];
  const std::uint64_t offset = slot.offset;
  const PlaceRange* const place = range(slot.place);
  Result<void> usable_here;
  if (slot.place != options.place.number() || place == nullptr || !place->holds(offset, tensor.bytes())) {
    usable_here = fail(ErrorCode::kInternal, "terraced granted tensor \"" + tensor.name() + "\" at " +
                                                 std::to_string(offset) + " of place " + std::to_string(slot.place) +
                                                 ", which is not within " + options.place.name());
  } else if (!place->mapped(offset, tensor.bytes())) {
    usable_here = wait_mapped(*place, offset, tensor.bytes());
  }
  if (!usable_here) {
    give_up(tensor.handle(), wire(mode));
    // Another time it may lie elsewhere: what cannot be mapped here goes.
    if (PlaceRange::is_seam_offset(offset))
      static_cast<void>(ask_async({&tensor, 1}, {.operation = shm::Operation::kEvict}));
    return std::unexpected(usable_here.error());
  }
  lease_begins(this);
  Result<Lease> lease;  // made where it is returned: to move one costs two counts of its tensor
  lease->tensor_ = tensor;
  lease->place_ = options.place;
  lease->writable_ = mode != Mode::kRead || options.writable_view;
  lease->address_ = place->address(offset, tensor.bytes(), lease->writable_);
  lease->cuda_device_ = place->gpu_ordinal();
  lease->bytes_ = tensor.bytes();
  lease->token_ = {.session = this, .handle = tensor.handle(), .mode = mode};  // last: now it is one
  return lease;
}

std::uint64_t Session::pinned_bytes() const {
  const PlaceRange* host = range(shm::kPlaceHost);
  return host == nullptr ? 0 : host->pinned_bytes();
}

cuda::Context Session::gpu_context(std::uint32_t place) const {
  const PlaceRange* found = range(place);
  return found == nullptr || !found->gpu_ordinal() ? nullptr : found->gpu()->context();
}

Result<void> Session::wait_mapped(const PlaceRange& place, std::uint64_t offset, std::uint64_t bytes) {
  std::unique_lock lock(mutex_);
  const std::pair memory(place.record().place, PlaceRange::is_seam_offset(offset) ? offset : 0);
  const auto refused = [&] { return unmappable_.contains(memory); };
  const auto known = [&] { return gone_.has_value() || refused() || place.mapped(offset, bytes); };
  changed_.wait_until(lock, deadline_after(kMappingTimeout), known);
  if (place.mapped(offset, bytes)) return {};
  if (refused()) return std::unexpected(unmappable_.at(memory));
  if (gone_) return std::unexpected(*gone_);
  return fail(ErrorCode::kDeadlineExceeded, "terraced granted a lease, but not passed the memory behind it in time");
}

}  // namespace terrace::client
