// SPDX-License-Identifier: Apache-2.0
// Shows that a damaged catalog is refused with kFailedPrecondition and a text that names the damage, that nothing is
// changed in it then, and that it is taken again once it is mended. (tests/fuzz/catalog_fuzz.cc looks for damage that
// nobody thought of.)
#include <gmock/gmock.h>

#include <cstring>

#include "engine/catalog/damage.h"
#include "engine/catalog/facts.h"
#include "unit/engine/harness.h"

namespace terrace::engine {
namespace {

using ::testing::HasSubstr;

const std::uint64_t kNotes = CatalogLayout(Harness::shape()).notes;
const std::uint64_t kJournal = CatalogLayout(Harness::shape()).journal;

// Two sessions of three tensors each, in all tiers, one note, and nothing under way.
class Damage : public ::testing::Test {
 protected:
  Damage() {
    for (int i = 0; i < 2; ++i) {
      OpenSession open;
      open.maps_segments = true;
      open.local_world_size = 2;
      open.token.fill(static_cast<std::uint8_t>(i + 1));
      const auto& client = *harness_.open(open);
      for (const char* name : {"a", "b", "c"}) harness_.write(client, harness_.create(client, name, 3 * kPageBytes), 7);
    }
  }

  NodeRecord& node() { return const_cast<NodeRecord&>(harness_.catalog.node()); }
  SessionRecord& session(std::size_t i) { return const_cast<SessionRecord&>(harness_.catalog.session(i)); }
  TensorState& state(std::size_t i, std::size_t slot) {
    return const_cast<TensorState&>(harness_.catalog.tensor(i, slot).state);
  }
  TensorState& state() { return state(0, 1); }
  TensorFacts& facts() { return const_cast<TensorFacts&>(harness_.catalog.tensor(0, 1).facts); }
  // Which count from now on.
  TensorRarities& rarities(std::size_t slot) {
    state(0, slot).flags |= kRare;
    auto& rare = const_cast<TensorRarities&>(harness_.catalog.tensor(0, slot).rarities);
    return rare = TensorRarities{};
  }
  template <typename T>
  T& at(std::uint64_t offset) {
    return *reinterpret_cast<T*>(harness_.catalog_bytes().data() + offset);
  }
  std::uint64_t offset_of(const void* record) {
    return static_cast<std::uint64_t>(static_cast<const std::byte*>(record) - harness_.catalog_bytes().data());
  }
  std::uint64_t& journal_used() { return at<std::uint64_t>(24); }
  std::uint64_t& notes_used() { return at<std::uint64_t>(32); }

  std::vector<std::byte> records() {
    const auto bytes = harness_.catalog_bytes();
    std::vector<std::byte> seen(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(kNotes + kPageBytes));
    for (std::size_t i = 0; i < 2; ++i) {
      const auto record = std::as_bytes(std::span(&session(i), 1));
      seen.insert(seen.end(), record.begin(), record.end());
      const TensorRecord first = harness_.catalog.tensor(i, 0);
      for (const auto column : {std::as_bytes(std::span(&first.state, 3)), std::as_bytes(std::span(&first.facts, 3))})
        seen.insert(seen.end(), column.begin(), column.end());
    }
    return seen;
  }
  Result<void> take_over() {
    auto opened = CatalogMemory::open(harness_.catalog_bytes(), Harness::shape());
    if (!opened) return std::unexpected(opened.error());
    Options options = three_tiers();
    options.sessions_max = Harness::shape().sessions_max;
    auto restored = Engine::restore(options, *opened, harness_.survivors());
    if (!restored) return std::unexpected(restored.error());
    (*restored)->check_invariants();
    return {};
  }
  // `value` put to `to` is refused with `what`; without it all is well.
  template <typename T>
  void refuses(T& value, std::type_identity_t<T> to, const char* what) {
    SCOPED_TRACE(what);
    const T sound = std::exchange(value, to);
    const auto before = records();
    const auto taken = take_over();
    ASSERT_FALSE(taken.has_value());
    EXPECT_EQ(taken.error().code, ErrorCode::kFailedPrecondition);
    EXPECT_THAT(taken.error().message, HasSubstr(what));
    EXPECT_TRUE(records() == before) << "nothing is changed";
    value = sound;
  }

  Harness harness_{three_tiers()};
};

TEST_F(Damage, NoneIsTaken) {
  const auto taken = take_over();
  EXPECT_TRUE(taken.has_value()) << taken.error().message;
}

TEST_F(Damage, OfCounters) {
  refuses(node().next_session, 0, "next session");
  refuses(node().next_session, UINT32_MAX, "next session");
  refuses(node().next_session, 2, "a session has a number to come");
  refuses(node().next_number, 0, "next tensor");
  refuses(node().next_number, UINT64_MAX, "next tensor");
  refuses(node().next_number, 3, "a tensor has a number to come");
  refuses(node().retired_count, 1, "a retired region");
  refuses(node().retired_count, kRetiredMax + 1, "retired");
}

// A catalog of nobody's may be dropped; one whose shape is damaged only looks like one, since its sessions are sought
// where they are not.
TEST_F(Damage, OfTheShapeIsNoShape) {
  const auto bytes = harness_.catalog_bytes();
  ASSERT_EQ(bytes.size(), CatalogMemory::bytes_needed(Harness::shape()));
  EXPECT_EQ(CatalogMemory::shape_of(bytes), Harness::shape());
  auto& sessions = at<std::uint32_t>(12);
  auto& tensors = at<std::uint32_t>(16);
  ASSERT_EQ(sessions, Harness::shape().sessions_max);
  ASSERT_EQ(tensors, Harness::shape().tensors_per_session_max);
  for (const std::uint32_t wrong : {0u, 1u, tensors / 2, tensors + 1, UINT32_MAX}) {
    const std::uint32_t sound = std::exchange(tensors, wrong);
    EXPECT_EQ(CatalogMemory::shape_of(bytes), std::nullopt) << wrong;
    tensors = sound;
  }
  sessions = 4194304;
  tensors = 3765450780;  // whose layout's sums wrap
  EXPECT_EQ(CatalogMemory::shape_of(bytes), std::nullopt);
}

TEST_F(Damage, OfSessions) {
  refuses(session(1).id, session(0).id, "there twice");
  refuses(session(1).token, session(0).token, "one token");
  refuses(session(0).slots_used, 257, "slots");
  refuses(session(0).mapped_bytes[1], UINT64_MAX, "of 'memory'");
  refuses(session(0).mapped_bytes[1], kPageBytes, "of 'memory'");
  refuses(session(0).floor_bytes[0], UINT64_MAX - kSegment + 1, "of 'device:0'");
  refuses(session(0).floor_bytes[0], 4 * kMiB, "more of 'device:0' than there is");
}

TEST_F(Damage, OfASessionWithMoreSlotsThanTheCatalogHas) {
  std::vector<shm::TableSlot> slots(Harness::shape().tensors_per_session_max + 44);
  auto survivors = harness_.survivors();
  survivors[0].table = LeaseTable(slots);
  session(0).slots_used = Harness::shape().tensors_per_session_max + 1;
  Options options = three_tiers();
  options.sessions_max = Harness::shape().sessions_max;
  const auto taken = Engine::restore(options, harness_.catalog, survivors);
  ASSERT_FALSE(taken.has_value());
  EXPECT_EQ(taken.error().code, ErrorCode::kFailedPrecondition);
  EXPECT_THAT(taken.error().message, HasSubstr("uses 257 slots"));
}

TEST_F(Damage, OfSeams) {
  ASSERT_TRUE(harness_.read(*harness_.clients[0], {Slot{1}, state().incarnation}, kHost)) << "so that memory has some";
  refuses(node().next_seam, 0, "next seam");
  refuses(node().next_seam, tier::kSeamsBegin + 1, "next seam");
  const auto seam = [&](std::size_t at) -> SeamRecord& {
    return const_cast<SeamRecord&>(harness_.catalog.seams(0)[at]);
  };
  const auto free = harness_.status().tiers[1].segment_bytes - kPageBytes;
  ASSERT_GT(harness_.status().tiers[1].segment_bytes, 0u);
  seam(3) = {.session = session(0).id, .tier = 1, .seam = tier::kSeamsBegin, .at = 0, .piece = {free, kPageBytes}};
  node().next_seam = tier::kSeamsBegin + kPageBytes;
  ASSERT_TRUE(take_over().has_value()) << "one that no copy uses";
  seam(3) = {.session = session(0).id, .tier = 1, .seam = tier::kSeamsBegin, .at = 0, .piece = {free, kPageBytes}};
  refuses(seam(3).tier, 2, "tier 2, which is none that trainers map");
  refuses(seam(3).tier, UINT32_MAX, "which is none that trainers map");
  refuses(seam(3).seam, 0, "has number 0");
  refuses(seam(3).seam, tier::kSeamsBegin + kPageBytes, "has number");
  refuses(seam(3).at, kPageBytes, "lacks a piece");
  refuses(seam(3).piece.offset, UINT64_MAX - 4095, "outside its tier");
  refuses(seam(3).piece.bytes, 0, "outside its tier");
  refuses(seam(3).piece.bytes, 1, "outside its tier");
  refuses(state().offset[1], tier::kSeamsBegin + kPageBytes, "its extent overlaps another, or lies outside its tier");
}

TEST_F(Damage, OfFacts) {
  refuses(facts().rank, 3, "shape of 3 dimensions");  // describe() would read past the dimensions that there are
  refuses(facts().rank, 9, "shape of 9 dimensions");
  refuses(facts().dimension_count, 17, "17 numbers");
  refuses(facts().bytes, 0, "its size is 0");
  refuses(facts().bytes, UINT64_MAX, "its size is 18446744073709551615");
  refuses(facts().bytes, kMiB, "overlaps another");
  refuses(facts().dtype, 99, "dtype 99");
  refuses(facts().name_bytes, 0, "its name has 0 bytes");
  refuses(facts().name_bytes, kNameBytesMax + 1, "its name has 176 bytes");
  refuses(facts().name_bytes, UINT16_MAX, "its name has 65535 bytes");
  auto& name = const_cast<char&>(name_of(harness_.catalog.tensor(0, 1)).front());
  refuses(name, 'a', "another has its name");
  refuses(facts().text, facts().text + 1, "outside");
  refuses(facts().text, harness_.catalog.texts_bytes(), "outside");
  refuses(facts().text, UINT64_MAX - 7, "outside");
  refuses(facts().text, harness_.catalog.tensor(0, 0).facts.text, "its name overlaps another's");
}

// Two shares beside them, of two parts and of one.
class DamageOfShares : public Damage {
 protected:
  DamageOfShares() {
    for (const auto& [name, create] :
         {std::pair("weights", true), std::pair("weights", false), std::pair("other", true)}) {
      OpenSession open;
      open.share = ShareAccess{name, create, true};
      open.maps_segments = true;
      if (create) open.guarantees = {{kHost, 0}, {kDevice, 0}};
      if (harness_.open(open) == nullptr) ADD_FAILURE() << harness_.refusal.message;
    }
  }
  // The record of the share, or that of its newest part.
  SessionRecord& share(std::string_view name) {
    SessionRecord* found = nullptr;
    for (std::size_t record = 0; record < Harness::shape().sessions_max; ++record)
      if (session(record).is_share() && session(record).label.data() == name) found = &session(record);
    return *found;
  }
  SessionRecord& part(std::string_view name) {
    SessionRecord* newest = nullptr;
    for (std::size_t record = 0; record < Harness::shape().sessions_max; ++record) {
      SessionRecord& was = session(record);
      if (was.id != 0 && !was.is_share() && was.share == share(name).id && (newest == nullptr || was.id > newest->id))
        newest = &was;
    }
    return *newest;
  }
};

TEST_F(DamageOfShares, OfWhoHasAPartInWhat) {
  EXPECT_TRUE(take_over().has_value());
  refuses(part("weights").share, 999, "a part in share 999, which is not there");
  refuses(part("weights").uid, 4711, "a part in another tenant's share");
  refuses(part("weights").id, part("weights").id - 1, "there twice");
  refuses(share("weights").uid, 4711, "of another tenant than whoever has a part in it");
  SessionRecord& other = share("other");
  other.share = share("weights").id;
  refuses(other.id, share("weights").id, "is there twice");
}

TEST_F(DamageOfShares, OfNames) {
  refuses(share("other").label, share("weights").label, "two shares have one name");
  refuses(share("other").label[0], '\0', "has no name");
}

TEST_F(DamageOfShares, OfWhoHoldsATensor) {
  refuses(rarities(1).holder, 1, "held by one session of a share, and is in none");
}

TEST_F(Damage, OfPlaces) {
  std::uint64_t& home = state().offset[index(Level::kBlock)];
  refuses(home, home + 1, "lies outside");  // not a whole page: take() would abort
  refuses(home, UINT64_MAX - kPageBytes + 1, "lies outside");
  refuses(home, state(1, 0).offset[index(Level::kBlock)], "home");
  refuses(state().first_checksum, UINT64_MAX, "checksums");
  refuses(state().first_checksum, state(0, 0).first_checksum, "checksums");
  const auto level = static_cast<std::size_t>(state().published);
  ASSERT_LT(level, index(Level::kBlock));
  refuses(state().offset[level], 1, "extent");
  refuses(state().offset[level], 1ull << 62, "extent");
  refuses(state().offset[level], state(0, 0).offset[level], "overlaps");
  refuses(state().device, 1, "tier that is not there");
  refuses(state().device, 200, "tier that is not there");
  refuses(state().extents, std::uint8_t{0}, "no home");
  refuses(state().extents, std::uint8_t{0xFF}, "tiers that there are not");
}

TEST_F(Damage, OfHomesInPieces) {
  TensorRarities& rare = rarities(1);
  const std::uint64_t home = state().offset[index(Level::kBlock)];
  rare.piece_count = 2;
  rare.pieces[0] = {home, kPageBytes};
  rare.pieces[1] = {home + kPageBytes, 2 * kPageBytes};
  EXPECT_TRUE(take_over().has_value());
  refuses(rare.piece_count, 9, "9 pieces");
  refuses(rare.piece_count, 3, "home");  // the third has no bytes
  refuses(rare.piece_count, 1, "not as large");
  refuses(rare.pieces[0].offset, home + 1, "lies outside");
  refuses(rare.pieces[0].offset, UINT64_MAX - kPageBytes + 1, "lies outside");
  refuses(rare.pieces[0].offset, state(1, 0).offset[index(Level::kBlock)], "home");
  refuses(rare.pieces[1].offset, home, "home");
  refuses(rare.pieces[0].bytes, kPageBytes + 1, "lies outside");
  std::swap(rare.pieces[0], rare.pieces[1]);
  refuses(rare.piece_count, 2, "two places");
  state().offset[index(Level::kBlock)] = home + kPageBytes;
  EXPECT_TRUE(take_over().has_value());
}

TEST_F(Damage, OfStates) {
  refuses(state().incarnation, UINT32_MAX, "incarnation");
  TensorState other = state();
  other.incarnation = UINT32_MAX;
  const TensorRecord sound = harness_.catalog.tensor(0, 1);
  EXPECT_THAT(damage_of({other, sound.facts, sound.rarities, sound.text}, {Level::kBlock, 64 * kMiB}),
              HasSubstr("its incarnation is 4294967295"));
  refuses(state(0, 2).number, state().number, "one number");
  rarities(1).piece_count = 9;
  state().flags &= static_cast<std::uint8_t>(~kRare);
  EXPECT_TRUE(take_over().has_value()) << "what does not count may be anything";
  refuses(state().flags, std::uint8_t{0}, "without content");
  refuses(state().flags, std::uint8_t{kWritten | kForget}, "given up is published");
  refuses(state().flags, std::uint8_t{kWritten | kLost}, "lost");
  refuses(state().valid, std::uint8_t{0}, "published");
  refuses(state().published, std::uint8_t{2}, "published");
  refuses(state().published, std::uint8_t{1}, "published");
  refuses(state().published, std::uint8_t{77}, "published");
  refuses(state().pinned, std::uint8_t{1}, "pinned");
  refuses(state().pinned, std::uint8_t{77}, "pinned");
  TensorRarities& rare = rarities(1);
  refuses(rare.sliding, std::uint8_t{1}, "on its way");
  refuses(rare.sliding, state().published, "on its way");
  state().published = 3;
  refuses(rare.sliding, std::uint8_t{77}, "on its way");
  state().valid = 0;
  refuses(rare.sliding, std::uint8_t{77}, "content");
}

TEST_F(Damage, OfSlides) {
  TensorState& last = state(0, 2);
  TensorRarities& rare = rarities(2);
  const auto level = last.published;
  last.published = 3;
  refuses(rare.sliding, level, "slid into another's");  // to offset 0, where another tensor begins
  rare.sliding = level;
  last.offset[level] += kPageBytes;
  rare.slide_offset = last.offset[level] - kPageBytes;
  EXPECT_TRUE(damage_of(harness_.catalog.tensor(0, 2), {Level::kBlock, 64 * kMiB}).empty());
  refuses(rare.slide_offset, last.offset[level], "goes");
  refuses(rare.slide_offset, 0, "slid into another's");
  refuses(rare.slid_bytes, 3 * kPageBytes, "goes");
  refuses(rare.slid_bytes, 100, "goes");
  EXPECT_TRUE(take_over().has_value());
}

TEST_F(Damage, OfNotes) {
  const std::uint64_t used = std::exchange(notes_used(), sizeof(GrantRecord));
  GrantRecord& note = at<GrantRecord>(kNotes);
  note = {.request = 1, .session = session(0).id, .kind = GrantRecord::Kind::kLeases};
  EXPECT_TRUE(take_over().has_value());
  notes_used() = sizeof(GrantRecord);
  refuses(note.count, 1, "no note at offset 0");
  refuses(note.count, UINT32_MAX, "no note at offset 0");
  refuses(note.kind, GrantRecord::Kind{0}, "no note at offset 0");
  refuses(note.kind, GrantRecord::Kind{9}, "no note at offset 0");
  refuses(notes_used(), sizeof(GrantRecord) + 8, "no note at offset 32");
  refuses(notes_used(), 64 * kMiB + 8, "more than there is room for");
  notes_used() = used;
}

// Tensors and leases that there are not, or that are named twice, are not there to be undone.
TEST_F(Damage, OfWhatNotesName) {
  const std::array slots = {GrantedSlot{1, state().incarnation}, GrantedSlot{1, state().incarnation},
                            GrantedSlot{200, 1}, GrantedSlot{UINT32_MAX, UINT32_MAX}, GrantedSlot{1, UINT32_MAX}};
  for (const auto kind : {GrantRecord::Kind::kTensors, GrantRecord::Kind::kLeases, GrantRecord::Kind::kStep}) {
    const GrantRecord note{.request = 1, .session = session(0).id, .kind = kind, .value = 0x302, .count = slots.size()};
    notes_used() = sizeof note + sizeof slots;
    std::memcpy(&at<std::byte>(kNotes), &note, sizeof note);
    std::memcpy(&at<std::byte>(kNotes + sizeof note), slots.data(), sizeof slots);
    const auto taken = take_over();
    EXPECT_TRUE(taken.has_value()) << taken.error().message;
  }
  EXPECT_EQ(session(0).step, 0u) << "fewer than none were not marked";
}

// It goes once, when its lease ends.
TEST_F(Damage, OfANoteThatNamesALeasedTensorTwice) {
  const Handle b{Slot{1}, 1};
  ASSERT_TRUE(harness_.acquire(*harness_.clients[0], kDevice, shm::Mode::kRead, {b}));
  const std::array slots = {GrantedSlot{1, 1}, GrantedSlot{1, 1}};
  const GrantRecord note{.request = 1, .session = session(0).id, .kind = GrantRecord::Kind::kTensors, .count = 2};
  notes_used() = sizeof note + sizeof slots;
  std::memcpy(&at<std::byte>(kNotes), &note, sizeof note);
  std::memcpy(&at<std::byte>(kNotes + sizeof note), slots.data(), sizeof slots);
  harness_.restart([] { return true; });
  EXPECT_EQ(harness_.status().sessions[0].tensors, 2u);
  EXPECT_EQ(harness_.look(*harness_.clients[0], b), 7u);
  harness_.release(*harness_.clients[0], b, shm::Mode::kRead);
  EXPECT_EQ(harness_.clients[0]->table.load(b.slot).state, shm::State::kFree);
}

TEST_F(Damage, OfTheJournal) {
  struct Entry {
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
  };
  Entry& first = at<Entry>(kJournal);
  const std::uint64_t whole = sizeof(Entry) + sizeof(NodeRecord);
  NodeRecord& former = at<NodeRecord>(kJournal + sizeof(Entry));
  first = {offset_of(&node()), sizeof(NodeRecord)};
  former = node();
  ++former.steps;
  refuses(journal_used(), 8, "journal");
  refuses(journal_used(), whole - 8, "journal");
  refuses(journal_used(), whole + 8, "journal");
  refuses(journal_used(), UINT64_MAX, "more than there is room for");
  journal_used() = whole;
  refuses(first.bytes, UINT64_MAX, "journal");
  refuses(first.bytes, 8, "journal");
  refuses(first.offset, 0, "journal");   // the magic number
  refuses(first.offset, 32, "journal");  // the length of the notes
  refuses(first.offset, UINT64_MAX, "journal");
  refuses(first.offset, offset_of(&state()) + 8, "journal");
  refuses(former.retired_count, kRetiredMax + 1, "journal");
  journal_used() = whole;
  const std::uint64_t steps = node().steps;
  EXPECT_TRUE(take_over().has_value());
  EXPECT_EQ(node().steps, steps + 1) << "undone";
}

// Of the tiers and of the retired regions, too.
TEST_F(Damage, NoneIsAChangeOfTheHeaderThatIsUndone) {
  const auto change = [&](const void* record, std::uint64_t bytes, std::uint64_t beyond) {
    const std::array entry{offset_of(record) + beyond, bytes};
    std::memcpy(&at<std::byte>(kJournal), entry.data(), sizeof entry);
    std::memcpy(&at<std::byte>(kJournal + sizeof entry), record, bytes);
    journal_used() = sizeof entry + bytes;
    return take_over();
  };
  const auto tiers = harness_.catalog.tiers();
  const auto retired = harness_.catalog.retired();
  EXPECT_TRUE(change(tiers.data(), tiers.size_bytes(), 0).has_value());
  EXPECT_TRUE(change(&retired[5], sizeof retired[5], 0).has_value());
  EXPECT_FALSE(change(&retired[5], sizeof retired[5], 8).has_value()) << "none begins there";
  EXPECT_FALSE(change(tiers.data(), sizeof(TierRecord), 0).has_value()) << "they are changed all at once";
  EXPECT_FALSE(change(&retired.back(), sizeof retired[5], sizeof retired[5]).has_value());
  journal_used() = 0;
  EXPECT_TRUE(take_over().has_value());
}

TEST_F(Damage, OfAHomeInATierThatThereIsNot) {
  Options options = three_tiers();
  options.tiers.pop_back();
  options.sessions_max = Harness::shape().sessions_max;
  Harness harness(options);
  const auto& client = *harness.open();
  harness.create(client, "a", kPageBytes);
  auto& state = const_cast<TensorState&>(harness.catalog.tensor(0, 0).state);
  state.extents |= bit(Level::kBlock);
  const auto taken = Engine::restore(options, harness.catalog, harness.survivors());
  ASSERT_FALSE(taken.has_value());
  EXPECT_EQ(taken.error().code, ErrorCode::kFailedPrecondition);
  EXPECT_THAT(taken.error().message, HasSubstr("on a block tier, and there is none"));
}

TEST_F(Damage, NoneAreStrides) {
  TensorSpec spec = spec_of("strided", kPageBytes);
  spec.shape = {2, 3};
  spec.strides = {3, 1};
  ASSERT_TRUE(harness_.ask(harness_.clients[0]->id, CreateTensors{{spec}}));
  auto& strided = const_cast<TensorFacts&>(harness_.catalog.tensor(0, 3).facts);
  ASSERT_EQ(strided.dimension_count, 4);
  EXPECT_TRUE(take_over().has_value());
  refuses(strided.dimension_count, 3, "3 numbers do not make a shape of 2 dimensions");
}

// The longest that there are.
TEST_F(Damage, NoneAreLongNamesAndManyDimensions) {
  TensorSpec spec = spec_of(std::string(kNameBytesMax - 1, 'n') + "!", kPageBytes);
  spec.shape = {1, 1, 1, 1, 1, 1, 2, 3};
  spec.strides = {8, 7, 6, 5, 4, 3, 3, 1};
  const auto& client = *harness_.clients[0];
  ASSERT_TRUE(harness_.ask(client.id, CreateTensors{{spec}}));
  harness_.restart([] { return true; });
  const auto listed = harness_.ask(client.id, ListTensors{.prefix = "nn"});
  ASSERT_TRUE(listed) << listed.error().message;
  const auto& tensors = std::get<TensorList>(*listed).tensors;
  ASSERT_EQ(tensors.size(), 1u);
  EXPECT_EQ(tensors[0].spec.name, spec.name);
  EXPECT_EQ(tensors[0].spec.shape, spec.shape);
  EXPECT_EQ(tensors[0].spec.strides, spec.strides);
}

}  // namespace
}  // namespace terrace::engine
