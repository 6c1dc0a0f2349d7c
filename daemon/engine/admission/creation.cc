// SPDX-License-Identifier: Apache-2.0
#include "engine/admission/creation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <utility>

#include "engine/catalog/facts.h"

namespace terrace::engine {
namespace {

// What would do, for people: a tier has whole segments.
std::string give_at_least(const TierOptions& home, std::uint64_t capacity_bytes) {
  return fmt::format("give it at least {} MiB", align_up(capacity_bytes, std::max(home.segment_bytes, kMiB)) / kMiB);
}

// What tensors take together; of more than anybody has, that.
std::uint64_t home_bytes(const std::vector<TensorSpec>& specs) {
  constexpr std::uint64_t kMost = UINT64_MAX / 2;
  std::uint64_t bytes = 0;
  for (const TensorSpec& spec : specs)
    bytes = std::min(bytes + align_up(std::min(spec.bytes, kMost - kPageBytes), kPageBytes), kMost);
  return bytes;
}

}  // namespace

Result<void> Creation::check_spec(const TensorSpec& spec, std::uint64_t all_bytes) const {
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
  const TierOptions& home = tiers_.home().options;
  if (spec.bytes > home.capacity_bytes)
    return fail(ErrorCode::kResourceExhausted,
                fmt::format("tensor '{}' of {} bytes is larger than the home tier '{}' of {} bytes: {}", spec.name,
                            spec.bytes, home.name, home.capacity_bytes, give_at_least(home, capacity_for(all_bytes))));
  const auto largest = std::ranges::max_element(
      tiers_, {}, [](const Tier& tier) { return tier.mapped() ? tier.options.capacity_bytes : 0; });
  if (spec.bytes > largest->options.capacity_bytes)
    return fail(ErrorCode::kResourceExhausted,
                fmt::format("tensor '{}' of {} bytes fits no place where it could be leased: the largest, '{}', has {} "
                            "bytes; make it smaller, or split it",
                            spec.name, spec.bytes, largest->leases.name, largest->options.capacity_bytes));
  return {};
}

Result<void> Creation::check_specs(const Session& session, const std::vector<TensorSpec>& specs) const {
  const std::uint64_t all_bytes = home_bytes(specs);
  std::unordered_map<std::string_view, bool> seen;
  for (const TensorSpec& spec : specs) {
    if (const auto good = check_spec(spec, all_bytes); !good) return good;
    if (session.names.find(spec.name, records_.names_of(session)) || !seen.emplace(spec.name, true).second)
      return fail(ErrorCode::kAlreadyExists,
                  fmt::format("there is a tensor '{}' already: use another name, or delete that one first", spec.name));
  }
  return check_home(session, specs);
}

// Quota, slots and capacity; no sum overflows, since all have room in the capacity.
Result<void> Creation::check_home(const Session& session, const std::vector<TensorSpec>& specs) const {
  const TierOptions& home = tiers_.home().options;
  const std::uint64_t capacity = home.capacity_bytes;
  const std::size_t table = session.members.front().table.size();
  const std::size_t slots = table - session.tensors.size() + session.free_slots.size();
  if (specs.size() > slots)
    return fail(ErrorCode::kResourceExhausted,
                fmt::format("{} tensors to create, but {} of the {} slots of the session's table are left",
                            specs.size(), slots, table));
  const std::uint64_t rounded = home_bytes(specs);
  if (rounded > capacity)
    return fail(ErrorCode::kResourceExhausted,
                fmt::format("the tensors need more than the {} bytes of the home tier '{}', {} bytes: {}", capacity,
                            home.name, rounded, give_at_least(home, capacity_for(rounded))));
  std::uint64_t bytes = 0;
  for (const TensorSpec& spec : specs) bytes += spec.bytes;
  for (const QuotaOptions& quota : options_.quotas) {
    if (quota.tenant_socket != session.tenant.socket || quota.home_bytes_max == 0) continue;
    std::uint64_t used = 0;
    for (const auto& [id, other] : registry_.all)
      if (other->tenant == session.tenant) used += other->tensor_bytes;
    if (used + bytes > quota.home_bytes_max)
      return fail(ErrorCode::kResourceExhausted,
                  fmt::format("{} bytes more would pass the quota of the tenant's user: {} of {} bytes are used", bytes,
                              used, quota.home_bytes_max));
  }
  return {};
}

// Of the home tier, to have room for so many bytes beside what it keeps as spare.
std::uint64_t Creation::capacity_for(std::uint64_t bytes) const {
  if (block_.spare_bytes == 0) return bytes;
  return static_cast<std::uint64_t>(std::ceil(static_cast<double>(bytes) / (1.0 - options_.spare_share)));
}

Result<void> Creation::reserve_on_block(const std::vector<TensorSpec>& specs, std::vector<tier::Pieces>& pieces,
                                        std::vector<std::uint64_t>& checksums) {
  std::uint64_t bytes = 0;
  for (const TensorSpec& spec : specs) bytes += align_up(spec.bytes, kPageBytes);
  const Tier& home = tiers_[tiers_.block];
  const std::uint64_t spare = block_.spare_bytes - std::min(block_.spare_bytes, block_.space.retired_bytes());
  const std::uint64_t room = block_.space.free_bytes() - std::min(spare, block_.space.free_bytes());
  std::uint64_t given = 0;
  for (const TensorSpec& spec : specs) {
    auto extents = bytes <= room ? block_.space.allocate_pieces(spec.bytes) : std::nullopt;
    const auto entries = extents ? block_.checksums.allocate(tier::chunk_count(spec.bytes)) : std::nullopt;
    if (entries) {
      given += extents->bytes();
      pieces.push_back(*extents);
      checksums.push_back(entries->offset);
      continue;
    }
    if (extents)
      for (const tier::Extent& extent : extents->span()) block_.space.free(extent);
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      for (const tier::Extent& extent : pieces[i].span()) block_.space.free(extent);
      block_.checksums.free({checksums[i], tier::chunk_count(specs[i].bytes)});
    }
    if (extents)
      return fail(ErrorCode::kResourceExhausted,
                  fmt::format("no home for tensor '{}' in '{}': it needs {} checksums side by side, and the largest "
                              "free run of them is {}; make it smaller, or delete others",
                              spec.name, home.options.name, tier::chunk_count(spec.bytes),
                              block_.checksums.largest_free_bytes()));
    return fail(ErrorCode::kResourceExhausted,
                fmt::format("no home for {} bytes in '{}': {} of {} bytes are used, {} kept as spare, {} retired, the "
                            "largest free extent has {}{}",
                            bytes, home.options.name, home.used_bytes, home.options.capacity_bytes, spare,
                            block_.space.retired_bytes(), block_.space.largest_free_bytes(),
                            bytes > room ? ": " + give_at_least(home.options, home.options.capacity_bytes +
                                                                                  capacity_for(bytes - room))
                                         : ""));
  }
  tiers_[tiers_.block].used_bytes += given;
  return {};
}

// False: room is being made.
Result<bool> Creation::reserve_homes(Session& session, Admission& admission, Homes& homes) {
  if (tiers_.home_level == Level::kBlock) {
    if (const auto done = reserve_on_block(admission.specs, homes.pieces, homes.checksums); !done)
      return std::unexpected(done.error());
    return true;
  }
  std::vector<std::uint64_t> sizes;
  for (const TensorSpec& spec : admission.specs) sizes.push_back(align_up(spec.bytes, kPageBytes));
  Error refusal;
  const Room room =
      admission.behind ? Room::kWait : rooms_.make_room(session, admission, sizes, homes.offsets, refusal);
  if (room == Room::kRefused) return std::unexpected(refusal);
  admission.block = admission.behind ? Admission::Block::kBusy : block_of(room);
  return room == Room::kReady;
}

void Creation::try_create(Session& session, Admission& admission) {
  const std::vector<TensorSpec>& specs = admission.specs;
  if (const auto good = check_specs(session, specs); !good)
    return grants_.fail_admission(session, admission, good.error());
  if (const auto room = records_.check_note(session, admission.member, specs.size()); !room)
    return grants_.fail_admission(session, admission, room.error());
  const auto texts = records_.reserve_texts(specs);
  if (!texts) return grants_.fail_admission(session, admission, texts.error());
  Homes homes;
  const auto reserved = reserve_homes(session, admission, homes);
  if (!reserved || !*reserved) records_.free_texts(specs, *texts);
  if (!reserved) return grants_.fail_admission(session, admission, reserved.error());
  if (!*reserved) return;
  Handles handles;
  std::vector<GrantedSlot> granted;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const Slot slot = lives_.add(session, specs[i], (*texts)[i]);
    const Tensor& tensor = session.at(slot);
    if (tiers_.home_level == Level::kBlock)
      lives_.give_home(session, slot, homes.pieces[i], homes.checksums[i]);
    else
      copies_.add_copy(session, slot, admission.tier, homes.offsets[i]);
    handles.tensors.push_back({slot, tensor.incarnation});
    granted.push_back({static_cast<std::uint32_t>(slot), tensor.incarnation});
  }
  const RequestId request = admission.request;
  records_.note(session,
                {.request = static_cast<std::uint64_t>(request),
                 .session = static_cast<std::uint32_t>(admission.member),
                 .kind = GrantRecord::Kind::kTensors,
                 .count = static_cast<std::uint32_t>(granted.size())},
                granted);
  grants_.end_admission(session, admission);
  requests_.answer(request, ReplyBody{std::move(handles)});
}

}  // namespace terrace::engine
