// SPDX-License-Identifier: Apache-2.0
#include "engine/stake.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "engine/residency/tensor.h"

namespace terrace::engine {
namespace {

// A session that survives, or one part in a share: by which record its tensors are, and whose words tell of them.
struct Reader {
  std::size_t record = 0;
  const SessionRecord* member = nullptr;
  LeaseTable table;
};

std::vector<Reader> readers_of(const CatalogMemory& catalog, std::span<const Survivor> survivors) {
  std::vector<Reader> readers;
  const std::size_t records = catalog.shape().sessions_max;
  for (std::size_t record = 0; record < records; ++record) {
    const SessionRecord& was = catalog.session(record);
    const auto survivor = std::ranges::find(survivors, SessionId{was.id}, &Survivor::session);
    if (!was.lives() || was.is_share() || survivor == survivors.end()) continue;
    std::size_t owner = record;
    if (was.share != 0)
      for (owner = 0; owner < records && catalog.session(owner).id != was.share;) ++owner;
    if (owner < records) readers.push_back({owner, &was, survivor->table});
  }
  return readers;
}

// Whether its copy in a device, or where that slides to, lies in one of them.
bool touches(const TensorRecord& tensor, SessionId space, std::span<const LostSegment> segments) {
  const auto lies_in = [&](const tier::Extent& extent, std::uint64_t offset) {
    return offset < extent.end() && extent.offset < offset + std::max<std::uint64_t>(tensor.facts.bytes, 1);
  };
  const bool slides = (tensor.state.flags & kRare) != 0 && tensor.rarities.sliding == index(Level::kDevice);
  return std::ranges::any_of(segments, [&](const LostSegment& segment) {
    if (segment.space != space || terrace::index(segment.tier) != tensor.state.device) return false;
    return lies_in(segment.extent, tensor.state.offset[index(Level::kDevice)]) ||
           (slides && lies_in(segment.extent, tensor.rarities.slide_offset));
  });
}

// Whether other copies are not the content, or may soon not be: as Restorer::settle_word() sees it.
bool is_there_alone(const TensorRecord& tensor, const SessionRecord& member, const shm::Word& word) {
  const TensorState& was = tensor.state;
  if ((was.flags & kTorn) != 0 || word.torn) return false;  // it is no content
  if ((was.valid & was.extents) == bit(Level::kDevice)) return true;
  const bool may_write = member.share == 0 || tensor.rarities.holder == member.id;
  if (was.published != index(Level::kDevice) || !may_write) return false;
  if (member.share != 0 && word.state == shm::State::kShared) return true;  // which was not recorded, nor what it wrote
  const bool known = word.incarnation == was.incarnation && (word.published() || word.state == shm::State::kClaimed);
  return !known || word.dirty || word.writers != 0;
}

// Each tensor that has bytes there, with everybody who reads it.
template <typename Use>
void each_there(const CatalogMemory& catalog, std::span<const Survivor> survivors,
                std::span<const LostSegment> segments, Use use) {
  for (Reader& reader : readers_of(catalog, survivors)) {
    const SessionRecord& was = catalog.session(reader.record);
    const std::size_t slots =
        std::min<std::size_t>({was.slots_used, reader.table.size(), catalog.shape().tensors_per_session_max});
    for (std::size_t slot = 0; slot < slots; ++slot) {
      const TensorRecord tensor = catalog.tensor(reader.record, slot);
      const TensorState& state = tensor.state;
      const bool is_here = state.session == was.id && state.number != 0 && (state.flags & kDeleted) == 0 &&
                           (state.extents & bit(Level::kDevice)) != 0;
      if (is_here && touches(tensor, SessionId{was.id}, segments))
        use(reader, Slot{static_cast<std::uint32_t>(slot)}, tensor);
    }
  }
}

}  // namespace

std::map<SessionId, std::size_t> tensors_at_stake(const CatalogMemory& catalog, std::span<const Survivor> survivors,
                                                  std::span<const LostSegment> segments) {
  std::set<std::pair<std::size_t, Slot>> found;  // by records of sessions
  each_there(catalog, survivors, segments, [&](const Reader& reader, Slot slot, const TensorRecord& tensor) {
    if (is_there_alone(tensor, *reader.member, reader.table.load(slot))) found.emplace(reader.record, slot);
  });
  std::map<SessionId, std::size_t> by_space;
  for (const auto& [record, slot] : found) ++by_space[SessionId{catalog.session(record).id}];
  return by_space;
}

void lend_at_stake(const CatalogMemory& catalog, std::span<const Survivor> survivors,
                   std::span<const LostSegment> segments) {
  each_there(catalog, survivors, segments,
             [](Reader& reader, Slot slot, const TensorRecord&) { shm::lend(reader.table.word(slot), true); });
}

}  // namespace terrace::engine
