// SPDX-License-Identifier: Apache-2.0
// The catalog: tensors are created, found, listed and deleted.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "engine/catalog/facts.h"
#include "engine/engine_impl.h"
#include "shm/layout.h"

namespace terrace::engine {

Result<void> EngineImpl::check_spec(const TensorSpec& spec) const {
  const auto bad = [&](std::string what) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("tensor '{}': {}", spec.name.substr(0, kNameBytesMax), what));
  };
  if (spec.name.empty() || spec.name.size() > kNameBytesMax)
    return bad(fmt::format("a name has 1 to {} bytes, this one has {}", kNameBytesMax, spec.name.size()));
  if (spec.bytes == 0) return bad("0 bytes: a tensor has at least one");
  if (element_bytes(spec.dtype) == 0)
    return bad(fmt::format("there is no dtype number {}", static_cast<std::uint32_t>(spec.dtype)));
  if (spec.shape.size() > kRankMax) return bad(fmt::format("{} dimensions: at most {}", spec.shape.size(), kRankMax));
  if (!spec.strides.empty() && spec.strides.size() != spec.shape.size())
    return bad(fmt::format("{} strides for {} dimensions", spec.strides.size(), spec.shape.size()));
  const TierOptions& home = tiers_.back().options;
  if (spec.bytes > home.capacity_bytes)
    return fail(ErrorCode::kResourceExhausted,
                fmt::format("tensor '{}' of {} bytes is larger than the home tier '{}' of {} bytes", spec.name,
                            spec.bytes, home.name, home.capacity_bytes));
  const auto largest = std::ranges::max_element(
      tiers_, {}, [](const Tier& tier) { return tier.mapped() ? tier.options.capacity_bytes : 0; });
  if (spec.bytes > largest->options.capacity_bytes)
    return fail(ErrorCode::kResourceExhausted,
                fmt::format("tensor '{}' of {} bytes fits no place where it could be leased: the largest, '{}', has {} "
                            "bytes; make it smaller, or split it",
                            spec.name, spec.bytes, largest->leases.name, largest->options.capacity_bytes));
  return {};
}

Result<void> EngineImpl::check_specs(const Session& session, const std::vector<TensorSpec>& specs) const {
  std::unordered_map<std::string_view, bool> seen;
  for (const TensorSpec& spec : specs) {
    if (const auto good = check_spec(spec); !good) return good;
    if (session.names.find(spec.name, names_of(session)) || !seen.emplace(spec.name, true).second)
      return fail(ErrorCode::kAlreadyExists,
                  fmt::format("there is a tensor '{}' already: use another name, or delete that one first", spec.name));
  }
  return check_home(session, specs);
}

// Quota, slots and capacity; the sizes are each at most the capacity, so that the sum below cannot overflow early.
Result<void> EngineImpl::check_home(const Session& session, const std::vector<TensorSpec>& specs) const {
  const std::size_t home = tiers_.size() - 1;
  const std::uint64_t capacity = tiers_[home].options.capacity_bytes;
  const std::size_t table = session.members.front().table.size();
  const std::size_t slots = table - session.tensors.size() + session.free_slots.size();
  if (specs.size() > slots)
    return fail(ErrorCode::kResourceExhausted,
                fmt::format("{} tensors to create, but {} of the {} slots of the session's table are left",
                            specs.size(), slots, table));
  std::uint64_t bytes = 0;
  std::uint64_t rounded = 0;
  for (const TensorSpec& spec : specs) {
    bytes += spec.bytes;
    rounded += align_up(spec.bytes, kPageBytes);
    if (rounded > capacity)
      return fail(ErrorCode::kResourceExhausted,
                  fmt::format("the tensors need more than the {} bytes of the home tier '{}'", capacity,
                              tiers_[home].options.name));
  }
  for (const QuotaOptions& quota : options_.quotas) {
    if (quota.tenant_socket != session.tenant.socket || quota.home_bytes_max == 0) continue;
    std::uint64_t used = 0;
    for (const auto& [id, other] : sessions_)
      if (other->tenant.socket == quota.tenant_socket) used += other->tensor_bytes;
    if (used + bytes > quota.home_bytes_max)
      return fail(ErrorCode::kResourceExhausted,
                  fmt::format("{} bytes more would pass the tenant's quota: {} of {} bytes are used", bytes, used,
                              quota.home_bytes_max));
  }
  return {};
}

void EngineImpl::on(const Request& request, CreateTensors&& body) {
  const auto session = session_to_write(request.session);
  if (!session) return answer(request.id, std::unexpected(session.error()));
  if (body.tensors.size() > shm::kSetMax)
    return answer(request.id, fail(ErrorCode::kInvalidArgument, fmt::format("{} tensors in one call: at most {}",
                                                                            body.tensors.size(), shm::kSetMax)));
  if (const auto good = check_specs(**session, body.tensors); !good)
    return answer(request.id, std::unexpected(good.error()));
  Admission admission;
  admission.kind = Admission::Kind::kCreate;
  admission.tier = tiers_.size() - 1;
  admission.specs = std::move(body.tensors);
  admission.request = request.id;
  admission.member = request.session;
  admission.id = next_admission_++;
  admission.started = now_;
  admission.deadline = request.deadline;
  if (!wait_for(request.id, request.session, request.deadline)) return;
  enlist(**session, std::move(admission));
}

Result<void> EngineImpl::reserve_on_block(const std::vector<TensorSpec>& specs, std::vector<tier::Pieces>& pieces,
                                          std::vector<std::uint64_t>& checksums) {
  std::uint64_t bytes = 0;
  for (const TensorSpec& spec : specs) bytes += align_up(spec.bytes, kPageBytes);
  const Tier& home = tiers_[block_tier_];
  const std::uint64_t spare = spare_bytes_ - std::min(spare_bytes_, block_space_.retired_bytes());
  const std::uint64_t room = block_space_.free_bytes() - std::min(spare, block_space_.free_bytes());
  std::uint64_t given = 0;
  for (const TensorSpec& spec : specs) {
    auto extents = bytes <= room ? block_space_.allocate_pieces(spec.bytes) : std::nullopt;
    const auto entries = extents ? checksum_space_.allocate(tier::chunk_count(spec.bytes)) : std::nullopt;
    if (entries) {
      given += extents->bytes();
      pieces.push_back(*extents);
      checksums.push_back(entries->offset);
      continue;
    }
    if (extents)
      for (const tier::Extent& extent : extents->span()) block_space_.free(extent);
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      for (const tier::Extent& extent : pieces[i].span()) block_space_.free(extent);
      checksum_space_.free({checksums[i], tier::chunk_count(specs[i].bytes)});
    }
    if (extents)
      return fail(ErrorCode::kResourceExhausted,
                  fmt::format("no home for tensor '{}' in '{}': it needs {} checksums side by side, and the largest "
                              "free run of them is {}; make it smaller, or delete others",
                              spec.name, home.options.name, tier::chunk_count(spec.bytes),
                              checksum_space_.largest_free_bytes()));
    return fail(ErrorCode::kResourceExhausted,
                fmt::format("no home for {} bytes in '{}': {} of {} bytes are used, {} kept as spare, {} retired, the "
                            "largest free extent has {}",
                            bytes, home.options.name, home.used_bytes, home.options.capacity_bytes, spare,
                            block_space_.retired_bytes(), block_space_.largest_free_bytes()));
  }
  tiers_[block_tier_].used_bytes += given;
  return {};
}

// False: room is being made.
Result<bool> EngineImpl::reserve_homes(Session& session, Admission& admission, Homes& homes) {
  if (home_level_ == Level::kBlock) {
    if (const auto done = reserve_on_block(admission.specs, homes.pieces, homes.checksums); !done)
      return std::unexpected(done.error());
    return true;
  }
  std::vector<std::uint64_t> sizes;
  for (const TensorSpec& spec : admission.specs) sizes.push_back(align_up(spec.bytes, kPageBytes));
  Error refusal;
  const Room room = admission.behind ? Room::kWait : make_room(session, admission, sizes, homes.offsets, refusal);
  if (room == Room::kRefused) return std::unexpected(refusal);
  admission.block = admission.behind ? Admission::Block::kBusy : block_of(room);
  return room == Room::kReady;
}

void EngineImpl::try_create(Session& session, Admission& admission) {
  const std::vector<TensorSpec>& specs = admission.specs;
  if (const auto good = check_specs(session, specs); !good) return fail_admission(session, admission, good.error());
  if (const auto room = check_note(session, admission.member, specs.size()); !room)
    return fail_admission(session, admission, room.error());
  const auto texts = reserve_texts(specs);
  if (!texts) return fail_admission(session, admission, texts.error());
  Homes homes;
  const auto reserved = reserve_homes(session, admission, homes);
  if (!reserved || !*reserved) free_texts(specs, *texts);
  if (!reserved) return fail_admission(session, admission, reserved.error());
  if (!*reserved) return;
  Handles handles;
  std::vector<GrantedSlot> granted;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const Slot slot = add_tensor(session, specs[i], (*texts)[i]);
    Tensor& tensor = session.at(slot);
    if (home_level_ == Level::kBlock) {
      tensor.extents = bit(Level::kBlock);
      tensor.offset[index(Level::kBlock)] = homes.pieces[i][0].offset;
      tensor.set_pieces(homes.pieces[i]);
      tensor.first_checksum = homes.checksums[i];
    } else {
      add_copy(session, slot, admission.tier, homes.offsets[i]);
    }
    handles.tensors.push_back({slot, tensor.incarnation});
    granted.push_back({static_cast<std::uint32_t>(slot), tensor.incarnation});
  }
  const RequestId request = admission.request;
  note(session,
       {.request = static_cast<std::uint64_t>(request),
        .session = static_cast<std::uint32_t>(admission.member),
        .kind = GrantRecord::Kind::kTensors,
        .count = static_cast<std::uint32_t>(granted.size())},
       granted);
  end_admission(session, admission);
  answer(request, ReplyBody{std::move(handles)});
}

Slot EngineImpl::add_tensor(Session& session, const TensorSpec& spec, std::uint64_t text) {
  Slot slot{};
  if (session.free_slots.empty()) {
    slot = session.tensors.add();
    session.at(slot).incarnation = 1;
  } else {
    slot = session.free_slots.back();
    session.free_slots.pop_back();
  }
  Tensor& tensor = session.at(slot);
  tensor.number = next_number_++;
  tensor.bytes = spec.bytes;
  TensorFacts facts = facts_of(spec);
  facts.text = text;
  catalog_->put(session.record, index(slot), facts, text_of(spec));
  TERRACE_CHECK(session.names.insert(slot, names_of(session)));
  ++session.tensor_count;
  session.tensor_bytes += spec.bytes;
  touch(session, slot);
  touch(session);
  unpublish(session, slot);
  return slot;
}

Result<Slot> EngineImpl::find(const Session& session, Handle handle) const {
  if (index(handle.slot) >= session.tensors.size())
    return fail(ErrorCode::kNotFound, fmt::format("no tensor in slot {}", index(handle.slot)));
  const Tensor& tensor = session.at(handle.slot);
  if (tensor.incarnation != handle.incarnation)
    return fail(ErrorCode::kAborted, fmt::format("the tensor of slot {}, incarnation {} was deleted: create it again",
                                                 index(handle.slot), handle.incarnation));
  if (tensor.deleted)
    return fail(ErrorCode::kAborted,
                fmt::format("tensor '{}' was deleted: create it again", name(session, handle.slot)));
  if (!tensor.live()) return fail(ErrorCode::kNotFound, fmt::format("no tensor in slot {}", index(handle.slot)));
  return handle.slot;
}

Result<std::vector<Slot>> EngineImpl::find_all(Session& session, const std::vector<Handle>& handles) {
  std::vector<Slot> slots;
  if (const auto found = find_all(session, handles, slots); !found) return std::unexpected(found.error());
  return slots;
}

// Its tensors' slots, which stand for as long as no tensor of the session is deleted.
Result<void> EngineImpl::find_set(Session& session, Admission& admission) {
  if (admission.found_lives == session.lives) return {};
  if (admission.slots.capacity() == 0) admission.slots.swap(spare_slots_);
  auto found = find_all(session, admission.tensors, admission.slots);
  if (found) admission.found_lives = session.lives;
  return found;
}

Result<void> EngineImpl::find_all(Session& session, const std::vector<Handle>& handles, std::vector<Slot>& slots) {
  slots.clear();
  if (handles.size() > shm::kSetMax)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} tensors in a set: at most {}", handles.size(), shm::kSetMax));
  const std::uint64_t mark = next_mark_++;
  slots.reserve(handles.size());
  for (const Handle& handle : handles) {
    const auto slot = find(session, handle);
    if (!slot) return std::unexpected(slot.error());
    Tensor& tensor = session.at(*slot);
    if (tensor.mark == mark)
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("tensor '{}' is twice in the set: name it once", name(session, *slot)));
    tensor.mark = mark;
    slots.push_back(*slot);
  }
  return {};
}

}  // namespace terrace::engine
