// SPDX-License-Identifier: Apache-2.0
#include "sim/node.h"

#include <fmt/format.h>

#include "base/check.h"

namespace terrace::sim {

using engine::Engine;

ChecksAreViolations::ChecksAreViolations() {
  on_check_failed = [](const char* condition, const char* file, int line) {
    throw Violation(fmt::format("{}:{}: check failed: {}", file, line, condition));
  };
}
ChecksAreViolations::~ChecksAreViolations() { on_check_failed = nullptr; }

engine::TierOptions tier_of(std::string name, tier::Kind kind, std::uint64_t capacity_bytes) {
  engine::TierOptions options;
  options.name = std::move(name);
  options.kind = kind;
  options.capacity_bytes = capacity_bytes;
  options.segment_bytes = kind == tier::Kind::kBlock ? 0 : kSegment;
  options.stitches = kind == tier::Kind::kMemory;
  return options;
}

engine::TensorSpec spec_of(std::string name, std::uint64_t bytes) {
  engine::TensorSpec spec;
  spec.name = std::move(name);
  spec.bytes = bytes;
  return spec;
}

Node::Node(engine::Options options, const engine::CatalogShape& holds)
    : catalog_range(engine::CatalogMemory::map(holds).value()),
      catalog(engine::CatalogMemory::format(catalog_bytes(), holds)),
      options_(std::move(options)) {
  options_.sessions_max = std::min(options_.sessions_max, holds.sessions_max);
  auto made = Engine::create(options_, catalog);
  if (!made) throw Violation(made.error().message);
  engine = std::move(*made);
  for (const engine::TierOptions& tier : options_.tiers)
    if (tier.kind == tier::Kind::kBlock) {
      disk_.resize(tier.capacity_bytes / kPageBytes);
      owners_.resize(disk_.size());
      sums_.resize(tier::checksum_entries(tier.capacity_bytes));
    }
}

RequestId Node::send(SessionId session, engine::Body body, Time deadline) {
  const RequestId id{next_request_++};
  open_[id] = deadline;
  asker_[id] = session;
  engine->submit(now, engine::Request{id, session, deadline, std::move(body)});
  drain();
  return id;
}

Result<engine::ReplyBody> Node::ask(SessionId session, engine::Body body, Time deadline) {
  const RequestId id = send(session, std::move(body), deadline);
  settle();
  return reply(id);
}

Result<engine::ReplyBody> Node::reply(RequestId id) {
  const auto found = replies.find(id);
  if (found == replies.end()) return fail(ErrorCode::kInternal, "NO REPLY");
  Result<engine::ReplyBody> result = std::move(found->second);
  replies.erase(found);
  return result;
}

void Node::advance(Time to) {
  while (engine->next_deadline() <= to) {
    now = std::max(now, engine->next_deadline());
    engine->tick(now);
    drain();
  }
  now = to;
  engine->tick(now);
  drain();
}

Node::Client* Node::open(engine::OpenSession open, std::size_t slots, Time deadline) {
  auto client = std::make_unique<Client>(slots);
  open.table = client->table;
  const auto result = ask(SessionId{}, open, deadline);
  if (!result) {
    refusal = result.error();
    return nullptr;
  }
  client->id = std::get<engine::SessionOpened>(*result).session;
  client->space = std::get<engine::SessionOpened>(*result).space;
  return clients.emplace_back(std::move(client)).get();
}

Handle Node::create(const Client& client, std::string name, std::uint64_t bytes) {
  const auto result = ask(client.id, engine::CreateTensors{{spec_of(std::move(name), bytes)}});
  if (!result) throw Violation(result.error().message);
  return std::get<engine::Handles>(*result).tensors.at(0);
}

Result<engine::ReplyBody> Node::acquire(const Client& client, std::uint32_t place, engine::Modes modes,
                                        std::vector<Handle> set, Time deadline) {
  return ask(client.id, engine::Acquire{place, std::move(modes), std::move(set)}, deadline);
}

bool Node::release_in_table(const Client& client, Handle handle, shm::Mode mode) {
  engine::LeaseTable table = client.table;
  const shm::Step step = shm::release(table.word(handle.slot), handle.incarnation, mode);
  require(step.outcome == shm::Outcome::kDone, "a lease that was granted can be released");
  return step.word.wanted && !step.word.leased();
}

void Node::release(const Client& client, Handle handle, shm::Mode mode) {
  if (release_in_table(client, handle, mode)) ring(client);
}

void Node::abandon(const Client& client, Handle handle) {
  engine::LeaseTable table = client.table;
  require(shm::tear(table.word(handle.slot), handle.incarnation).outcome == shm::Outcome::kDone,
          "a lease that was granted can be given up");
  release(client, handle, shm::Mode::kOverwrite);
}

void Node::ring(const Client& client) {
  engine->lease_ended(now, client.id);
  drain();
}

void Node::write(const Client& client, Handle handle, std::uint64_t value, std::uint32_t place, shm::Mode mode) {
  const auto result = acquire(client, place, mode, {handle});
  if (!result) throw Violation(result.error().message);
  fill(client, handle, value);
  release(client, handle, mode);
}

Result<std::uint64_t> Node::read(const Client& client, Handle handle, std::uint32_t place) {
  const auto result = acquire(client, place, shm::Mode::kRead, {handle});
  if (!result) return std::unexpected(result.error());
  const std::uint64_t value = look(client, handle);
  release(client, handle, shm::Mode::kRead);
  return value;
}

void Node::fill(const Client& client, Handle handle, std::uint64_t value) {
  for (std::uint64_t* page : pages_of(client, handle)) *page = value++;
}

std::uint64_t Node::look(const Client& client, Handle handle) {
  const auto pages = pages_of(client, handle);
  for (std::size_t i = 0; i < pages.size(); ++i)
    if (*pages[i] != *pages[0] + i && !(*pages[0] == 0 && *pages[i] == 0)) return UINT64_MAX;
  return *pages[0];
}

void Node::done(const mover::Transfer& transfer, Result<void> result, TierId failed) {
  engine->transfer_done(now, {transfer.id, std::move(result), failed});
  drain();
}

void Node::complete_transfer(std::size_t index, std::optional<Error> error, TierId failed) {
  const mover::Transfer transfer = transfers[index];
  transfers.erase(transfers.begin() + static_cast<std::ptrdiff_t>(index));
  if (error) return done(transfer, std::unexpected(*error), failed);
  auto moved = move(transfer, Lie::kNone, 0, {});
  const TierId culprit = moved ? TierId{} : transfer.from.tier;
  done(transfer, std::move(moved), culprit);
}

void Node::complete_write(std::size_t index, Lie lie, std::uint64_t elsewhere,
                          const std::function<void(std::uint64_t)>& harmed) {
  const mover::Transfer transfer = transfers[index];
  transfers.erase(transfers.begin() + static_cast<std::ptrdiff_t>(index));
  done(transfer, move(transfer, lie, elsewhere, harmed), transfer.to.tier);
}

void Node::fail_transfer(std::size_t index, Error error, TierId failed, const std::function<bool()>& coin) {
  const mover::Transfer transfer = transfers[index];
  transfers.erase(transfers.begin() + static_cast<std::ptrdiff_t>(index));
  break_off(transfer, coin);
  done(transfer, std::unexpected(std::move(error)), failed);
}

void Node::complete_order(std::size_t index, std::optional<Error> error) {
  const mover::SegmentOrder order = orders[index];
  orders.erase(orders.begin() + static_cast<std::ptrdiff_t>(index));
  auto& space = spaces_[{terrace::index(order.tier), order.session}];
  mover::SegmentDone finished{order, {}};
  if (error) {
    finished.result = std::unexpected(*error);
  } else if (order.kind == mover::SegmentOrder::Kind::kStitch) {
    auto& seam = seams_[{terrace::index(order.tier), order.session}][order.extent.offset].pages;
    for (const tier::Extent& piece : order.pieces) {
      require(piece.end() <= space.size() * kPageBytes, "a seam is of memory that is there");
      for (std::uint64_t at = piece.offset; at < piece.end(); at += kPageBytes) seam.push_back(at / kPageBytes);
    }
    require(seam.size() * kPageBytes == order.extent.bytes, "a seam has its pieces");
  } else if (order.kind == mover::SegmentOrder::Kind::kUnstitch) {
    // Nobody is sent there from when it was asked for: see drain().
  } else if (order.kind == mover::SegmentOrder::Kind::kAdd) {
    require(order.extent.offset == space.size() * kPageBytes, "a segment is added at the end of its space");
    space.resize(order.extent.end() / kPageBytes);
  } else {
    require(order.extent.end() == space.size() * kPageBytes, "a segment is removed from the end of its space");
    space.resize(order.extent.offset / kPageBytes);
  }
  engine->segment_done(now, finished);
  drain();
}

void Node::complete_orders() {
  while (!orders.empty()) complete_order(0);
}

// Nobody asks for anything meanwhile, so that what goes on for so long goes on for ever.
void Node::settle() {
  constexpr int kSettlesMax = 100'000;
  for (int done = 0; !transfers.empty() || !orders.empty(); ++done) {
    TERRACE_CHECK(done < kSettlesMax);
    if (!orders.empty())
      complete_order(0);
    else
      complete_transfer(0);
  }
}

void Node::corrupt_disk() {
  for (std::uint64_t& page : disk_) page ^= 1;
}

std::uint64_t Node::flip_bit(std::uint64_t page) {
  disk_[page] ^= 1;
  return owners_[page];
}

void Node::drain() {
  engine::Output out = engine->take_output();
  for (engine::Reply& reply : out.replies) {
    const auto found = open_.find(reply.id);
    require(found != open_.end(), fmt::format("law 6: request {} has one reply", static_cast<std::uint64_t>(reply.id)));
    require(now <= found->second,
            fmt::format("law 6: request {} is answered by its deadline", static_cast<std::uint64_t>(reply.id)));
    const SessionId asker = asker_.at(reply.id);
    engine->answering(reply.id, completions_[asker] + 1);
    ++completions_[asker];
    engine->answered(reply.id);
    open_.erase(found);
    asker_.erase(reply.id);
    answered_in_order.push_back(reply.id);
    replies.emplace(reply.id, std::move(reply.result));
  }
  for (mover::Transfer& transfer : out.transfers) {
    for (const tier::Location* at : {&transfer.from, &transfer.to})
      for (const tier::Extent& piece : at->pieces.span())
        require(on_block(*at) || piece.offset < tier::kSeamsBegin ||
                    !seams_[{terrace::index(at->tier), at->session}][piece.offset].gone,
                "nobody is sent to a seam that was taken apart");
    require(!former_at_work() || !is_of_block(transfer), "nobody is at the block tier beside a former daemon");
    transfers.push_back(std::move(transfer));
  }
  for (mover::SegmentOrder& order : out.segment_orders) {
    if (order.kind == mover::SegmentOrder::Kind::kUnstitch)
      seams_[{terrace::index(order.tier), order.session}][order.extent.offset].gone = true;
    orders.push_back(order);
  }
  for (const SessionId gone : out.gone) {
    std::erase_if(orders, [&](const mover::SegmentOrder& order) { return order.session == gone; });
    for (const mover::Transfer& transfer : transfers)
      require(transfer.to.session != gone, "a session goes when none of its transfers is under way");
    std::erase_if(spaces_, [&](const auto& space) { return space.first.second == gone; });
    std::erase_if(seams_, [&](const auto& seams) { return seams.first.second == gone; });
    std::erase_if(late_, [&](const Late& late) { return !on_block(late.to) && late.to.session == gone; });
    for (const auto& client : clients)
      if (client->id == gone) client->gone = true;
  }
  for (const engine::Pressure& event : out.pressure) pressure.push_back(event);
  for (const auto& [id, deadline] : open_)
    require(now <= deadline,
            fmt::format("law 6: request {} is answered by its deadline", static_cast<std::uint64_t>(id)));
  std::vector<SessionId> scribbled;
  for (const auto& client : clients)
    if (client->scribbles && !client->gone) scribbled.push_back(client->id);
  engine->check_invariants(scribbled);
}

std::map<SessionId, const engine::SessionRecord*> Node::surviving_records() const {
  std::map<SessionId, const engine::SessionRecord*> records;
  for (std::size_t i = 0; i < catalog.shape().sessions_max; ++i)
    if (catalog.session(i).lives()) records[SessionId{catalog.session(i).id}] = &catalog.session(i);
  return records;
}

std::vector<engine::Survivor> Node::survivors() const {
  std::vector<engine::Survivor> found;
  for (const auto& client : clients) {
    if (client->gone) continue;
    const auto answered = completions_.find(client->id);
    found.push_back({client->id, client->table, answered == completions_.end() ? 0 : answered->second});
  }
  return found;
}

std::vector<RequestId> Node::restart(const std::function<bool()>& coin, bool lingers,
                                     std::span<const engine::LostSegment> lost_segments) {
  catalog.between_stores = nullptr;
  engine.reset();
  options_.former_at_work |= lingers;
  for (const mover::Transfer& transfer : std::exchange(transfers, {})) {
    if (lingers && is_of_block(transfer)) outlive(transfer);
    break_off(transfer, coin);
  }
  orders.clear();
  auto opened = engine::CatalogMemory::open(catalog_bytes(), catalog.shape());
  if (!opened) throw Violation("the successor opens the catalog: " + opened.error().message);
  catalog = *opened;
  const auto records = surviving_records();
  for (const auto& client : clients) client->gone |= !records.contains(client->id);
  std::erase_if(spaces_, [&](const auto& space) { return !records.contains(space.first.second); });
  std::erase_if(late_, [&](const Late& late) { return !on_block(late.to) && !records.contains(late.to.session); });
  for (auto& [key, space] : spaces_) {
    const std::uint64_t mapped = records.at(key.second)->mapped_bytes[key.first];
    require(space.size() * kPageBytes >= mapped, "segments that the catalog names are there");
    space.resize(mapped / kPageBytes);
  }
  auto restored = Engine::restore(options_, catalog, survivors(), lost_segments);
  if (!restored) throw Violation("the successor restores the catalog: " + restored.error().message);
  engine = std::move(*restored);
  const auto sessions = engine->status().sessions;
  std::erase_if(spaces_, [&](const auto& space) {  // of shares that nobody has a part in any more
    return std::ranges::find(sessions, space.first.second, &engine::SessionStatus::session) == sessions.end();
  });
  std::vector<RequestId> lost;
  for (const auto& [id, deadline] : open_) lost.push_back(id);
  open_.clear();
  asker_.clear();
  drain();
  return lost;
}

bool Node::on_block(const tier::Location& at) const {
  return options_.tiers[terrace::index(at.tier)].kind == tier::Kind::kBlock;
}

std::vector<std::uint64_t*> Node::pages_at(const tier::Location& at) {
  std::vector<std::uint64_t*> pages;
  std::vector<std::uint64_t>& space = on_block(at) ? disk_ : spaces_[{terrace::index(at.tier), at.session}];
  for (const tier::Extent& piece : at.pieces.span()) {
    if (piece.offset >= tier::kSeamsBegin) {
      const auto& pages_behind = seams_[{terrace::index(at.tier), at.session}][piece.offset].pages;
      require(piece.bytes == pages_behind.size() * kPageBytes, "a copy in a seam has all of it");
      for (const std::uint64_t page : pages_behind) {
        require(page < space.size(), "nobody is sent to memory that is not there");
        pages.push_back(&space[page]);
      }
      continue;
    }
    for (std::uint64_t offset = piece.offset; offset < piece.end(); offset += kPageBytes) {
      require(offset / kPageBytes < space.size(), "nobody is sent to memory that is not there");
      pages.push_back(&space[offset / kPageBytes]);
    }
  }
  return pages;
}

std::vector<std::uint64_t*> Node::pages_of(const Client& client, Handle handle) {
  const shm::TableSlot& slot = client.slots[terrace::index(handle.slot)];
  require(shm::Word::unpack(slot.word.load()).leased(), "what is looked at is leased");
  std::size_t tier = 0;
  while (slot.place == kHost && options_.tiers[tier].kind != tier::Kind::kMemory) ++tier;
  if (slot.place != kHost) tier = slot.place - shm::kPlaceDevice0;
  return pages_at(
      {static_cast<TierId>(tier), client.space, tier::Pieces({slot.offset, align_up(slot.bytes, kPageBytes)}), 0});
}

Result<void> Node::move(const mover::Transfer& transfer, Lie lie, std::uint64_t elsewhere,
                        const std::function<void(std::uint64_t)>& harmed) {
  const auto to = pages_at(transfer.to);
  std::vector<std::uint64_t> bytes(to.size(), 0);
  Sum sum{transfer.tensor, transfer.version, 0};
  if (!transfer.zero_fill && !transfer.prove) {
    const auto from = pages_at(transfer.from);
    TERRACE_CHECK(from.size() == to.size());
    for (std::size_t i = 0; i < from.size(); ++i) bytes[i] = *from[i];
  }
  for (const std::uint64_t page : bytes) sum.digest = sum.digest * 31 + page;
  if (transfer.link.kind == mover::LinkKind::kBlockRead && sums_[transfer.from.first_checksum] != sum)
    return fail(ErrorCode::kDataLoss, "checksum mismatch");
  if (transfer.link.kind == mover::LinkKind::kBlockWrite && !transfer.prove) sums_[transfer.to.first_checksum] = sum;
  if (on_block(transfer.to))
    for (std::uint64_t* page : to) owners_[static_cast<std::size_t>(page - disk_.data())] = transfer.tensor;
  if (lie != Lie::kNone) harmed(transfer.tensor);
  for (std::size_t i = 0; i < to.size(); ++i) {
    if (lie == Lie::kLost || (lie == Lie::kTorn && i >= to.size() / 2)) break;
    const std::size_t astray = (elsewhere + i) % std::max<std::size_t>(disk_.size(), 1);
    if (lie == Lie::kMisdirected) harmed(owners_[astray]);
    *(lie == Lie::kMisdirected ? &disk_[astray] : to[i]) = bytes[i];
  }
  if (transfer.prove && lie != Lie::kNone)
    return fail(ErrorCode::kInternal, "what was written for a proof came back otherwise", 5);
  return {};
}

// Some pages of a copy that was under way.
void Node::break_off(const mover::Transfer& transfer, const std::function<bool()>& coin) {
  const auto to = pages_at(transfer.to);
  const bool from_nowhere = transfer.zero_fill || transfer.prove;
  const auto from = from_nowhere ? to : pages_at(transfer.from);
  std::vector<std::uint64_t> bytes;
  for (const std::uint64_t* page : from) bytes.push_back(from_nowhere ? 0 : *page);
  for (std::size_t i = 0; i < to.size(); ++i)
    if (coin()) *to[i] = bytes[i];
  if (transfer.link.kind == mover::LinkKind::kBlockWrite && coin() && !transfer.prove)
    sums_[transfer.to.first_checksum] = {};
}

bool Node::is_of_block(const mover::Transfer& transfer) {
  return transfer.link.kind == mover::LinkKind::kBlockRead || transfer.link.kind == mover::LinkKind::kBlockWrite;
}

// The memory of a session that has gone is nobody's any more, but pages of the disk are always there.
void Node::outlive(const mover::Transfer& transfer) {
  std::vector<std::uint64_t> bytes;
  for (const std::uint64_t* page : pages_at(transfer.from)) bytes.push_back(transfer.zero_fill ? 0 : *page);
  late_.push_back({transfer.to, std::move(bytes)});
}

void Node::land(const std::function<bool()>& coin) {
  for (const Late& late : late_) {
    const auto to = pages_at(late.to);
    for (std::size_t i = 0; i < to.size(); ++i)
      if (coin()) *to[i] = late.bytes[i];
  }
}

void Node::end_former(const std::function<bool()>& coin) {
  land(coin);
  late_.clear();
  options_.former_at_work = false;
  engine->former_ended(now);
  drain();
}

}  // namespace terrace::sim
