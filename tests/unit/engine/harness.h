// SPDX-License-Identifier: Apache-2.0
// Drives an engine as the daemon does, without one: lease tables in plain memory, tiers whose pages are one number
// each, transfers and segments completed in the order that a test chooses. It checks the laws after every input, that
// every request is answered once and by its deadline, and that checksummed bytes are read back where they were written.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/mapping.h"
#include "engine/engine.h"
#include "shm/layout.h"

namespace terrace::engine {

inline constexpr std::uint64_t kSegment = 2 * kMiB;
inline constexpr std::uint32_t kHost = shm::kPlaceHost;
inline constexpr std::uint32_t kDevice = shm::kPlaceDevice0;

inline TierOptions tier_of(std::string name, tier::Kind kind, std::uint64_t capacity_bytes) {
  return {.name = std::move(name),
          .kind = kind,
          .capacity_bytes = capacity_bytes,
          .segment_bytes = kind == tier::Kind::kBlock ? 0 : kSegment};
}

inline TensorSpec spec_of(std::string name, std::uint64_t bytes) {
  TensorSpec spec;
  spec.name = std::move(name);
  spec.bytes = bytes;
  return spec;
}

inline Options three_tiers(std::uint64_t device = 4 * kMiB, std::uint64_t memory = 8 * kMiB,
                           std::uint64_t block = 64 * kMiB) {
  Options options;
  options.tiers = {tier_of("device:0", tier::Kind::kDevice, device), tier_of("memory", tier::Kind::kMemory, memory),
                   tier_of("block", tier::Kind::kBlock, block)};
  return options;
}

class Harness {
 public:
  struct Client {
    SessionId id{};
    std::vector<shm::TableSlot> slots;
    LeaseTable table;
    bool gone = false;
    explicit Client(std::size_t count) : slots(count), table(slots) {}
  };

  // With a catalog, the engine can end at any point and have a successor: restart().
  explicit Harness(Options options, bool with_catalog = false) : options_(options) {
    if (with_catalog) {
      const std::uint64_t bytes = align_up(CatalogMemory::bytes_needed(shape()), kPageBytes);
      catalog_memory_ =
          *AddressRange::map(sealed_memfd("terrace-test-catalog", bytes)->get(), bytes, PROT_READ | PROT_WRITE);
      catalog = CatalogMemory::format({catalog_memory_.data(), bytes}, shape());
    }
    if (catalog) options.sessions_max = options_.sessions_max = shape().sessions_max;
    auto made = Engine::create(std::move(options), catalog ? &*catalog : nullptr);
    if (!made) ADD_FAILURE() << made.error().message;
    engine = std::move(*made);
    for (const TierOptions& tier : options_.tiers)
      if (tier.kind == tier::Kind::kBlock) {
        disk_.resize(tier.capacity_bytes / kPageBytes);
        sums_.resize(tier::checksum_entries(tier.capacity_bytes));
      }
  }

  // Sends a request; its reply comes into `replies` in time.
  RequestId send(SessionId session, Body body, Time deadline = kNever) {
    const RequestId id{next_request_++};
    open_[id] = deadline;
    asker_[id] = session;
    engine->submit(now, Request{id, session, deadline, std::move(body)});
    drain();
    return id;
  }
  // Sends one, completes whatever comes down, and returns its reply.
  Result<ReplyBody> ask(SessionId session, Body body, Time deadline = kNever) {
    const RequestId id = send(session, std::move(body), deadline);
    settle();
    return reply(id);
  }
  bool answered(RequestId id) const { return replies.contains(id); }
  Result<ReplyBody> reply(RequestId id) {
    const auto found = replies.find(id);
    if (found == replies.end()) return fail(ErrorCode::kInternal, "NO REPLY");
    Result<ReplyBody> result = std::move(found->second);
    replies.erase(found);
    return result;
  }
  void advance(Time to) {
    while (engine->next_deadline() <= to) {  // a timer rings at each
      now = std::max(now, engine->next_deadline());
      engine->tick(now);
      drain();
    }
    now = to;
    engine->tick(now);
    drain();
  }

  // A session, opened; nullptr and `refusal` if it could not be.
  Client* open(OpenSession open = {}, std::size_t slots = 256, Time deadline = kNever) {
    auto client = std::make_unique<Client>(slots);
    open.table = client->table;
    const auto result = ask(SessionId{}, open, deadline);
    if (!result) {
      refusal = result.error();
      return nullptr;
    }
    client->id = std::get<SessionOpened>(*result).session;
    return clients.emplace_back(std::move(client)).get();
  }
  Handle create(const Client& client, std::string name, std::uint64_t bytes) {
    const auto result = ask(client.id, CreateTensors{{spec_of(std::move(name), bytes)}});
    if (!result) {
      ADD_FAILURE() << result.error().message;
      return {};
    }
    return std::get<Handles>(*result).tensors.at(0);
  }
  Result<ReplyBody> acquire(const Client& client, std::uint32_t place, shm::Mode mode, std::vector<Handle> set,
                            Time deadline = kNever) {
    return ask(client.id, Acquire{place, mode, std::move(set)}, deadline);
  }
  // As a client's deleter does: in the word, and the doorbell if somebody waits.
  void release(const Client& client, Handle handle, shm::Mode mode) {
    LeaseTable table = client.table;
    const shm::Step step = shm::release(table.word(handle.slot), handle.incarnation, mode);
    ASSERT_EQ(step.outcome, shm::Outcome::kDone);
    if (step.word.wanted && !step.word.leased()) ring(client);
  }
  void ring(const Client& client) {
    engine->lease_ended(now, client.id);
    drain();
  }
  // Writes `value` under a lease, through the given place, and releases it.
  void write(const Client& client, Handle handle, std::uint64_t value, std::uint32_t place = kDevice,
             shm::Mode mode = shm::Mode::kOverwrite) {
    const auto result = acquire(client, place, mode, {handle});
    ASSERT_TRUE(result) << result.error().message;
    fill(client, handle, value);
    release(client, handle, mode);
  }
  // What a reader at `place` sees, or the error.
  Result<std::uint64_t> read(const Client& client, Handle handle, std::uint32_t place = kDevice) {
    const auto result = acquire(client, place, shm::Mode::kRead, {handle});
    if (!result) return std::unexpected(result.error());
    const std::uint64_t value = look(client, handle);
    release(client, handle, shm::Mode::kRead);
    return value;
  }

  // The bytes of a leased copy, by its table slot.
  void fill(const Client& client, Handle handle, std::uint64_t value) {
    for (std::uint64_t* page : pages_of(client, handle)) *page = value++;
  }
  // The number it was filled with; UINT64_MAX if the pages do not belong together.
  std::uint64_t look(const Client& client, Handle handle) {
    const auto pages = pages_of(client, handle);
    for (std::size_t i = 0; i < pages.size(); ++i)
      if (*pages[i] != *pages[0] + i && !(*pages[0] == 0 && *pages[i] == 0)) return UINT64_MAX;
    return *pages[0];
  }

  void complete_transfer(std::size_t index, std::optional<Error> error = {}, TierId failed = {}) {
    const mover::Transfer transfer = transfers[index];
    transfers.erase(transfers.begin() + static_cast<std::ptrdiff_t>(index));
    mover::TransferDone done{transfer.id, {}, failed};
    if (error)
      done.result = std::unexpected(*error);
    else if (auto moved = move(transfer); !moved)
      done = {transfer.id, std::unexpected(moved.error()), transfer.from.tier};
    engine->transfer_done(now, done);
    drain();
  }
  void complete_order(std::size_t index, std::optional<Error> error = {}) {
    const mover::SegmentOrder order = orders[index];
    orders.erase(orders.begin() + static_cast<std::ptrdiff_t>(index));
    auto& space = spaces_[{terrace::index(order.tier), order.session}];
    mover::SegmentDone done{order, {}};
    if (error) {
      done.result = std::unexpected(*error);
    } else if (order.kind == mover::SegmentOrder::Kind::kAdd) {
      EXPECT_EQ(order.extent.offset, space.size() * kPageBytes) << "always at the end";
      space.resize(order.extent.end() / kPageBytes);
    } else {
      EXPECT_EQ(order.extent.end(), space.size() * kPageBytes) << "always from the end";
      space.resize(order.extent.offset / kPageBytes);
    }
    engine->segment_done(now, done);
    drain();
  }
  void complete_orders() {
    while (!orders.empty()) complete_order(0);
  }
  void settle() {
    while (!transfers.empty() || !orders.empty()) {
      if (!orders.empty())
        complete_order(0);
      else
        complete_transfer(0);
    }
  }
  Status status() { return engine->status(); }
  // Flips a page of the tensor's bytes on the disk.
  void corrupt_disk() {
    for (std::uint64_t& page : disk_) page ^= 1;
  }

  void drain() {
    Output out = engine->take_output();
    for (Reply& reply : out.replies) {
      const auto found = open_.find(reply.id);
      ASSERT_NE(found, open_.end()) << "a second reply, or one to nobody";
      EXPECT_LE(now, found->second) << "a reply after its deadline";
      const SessionId asker = asker_.at(reply.id);
      engine->answering(reply.id, completions_[asker] + 1);
      ++completions_[asker];
      engine->answered(reply.id);
      open_.erase(found);
      asker_.erase(reply.id);
      answered_in_order.push_back(reply.id);
      replies.emplace(reply.id, std::move(reply.result));
    }
    for (mover::Transfer& transfer : out.transfers) transfers.push_back(std::move(transfer));
    for (mover::SegmentOrder& order : out.segment_orders) orders.push_back(order);
    for (const SessionId gone : out.gone) {
      std::erase_if(orders, [&](const mover::SegmentOrder& order) { return order.session == gone; });
      for (const mover::Transfer& transfer : transfers) EXPECT_NE(transfer.to.session, gone) << "still under way";
      std::erase_if(spaces_, [&](const auto& space) { return space.first.second == gone; });
      for (const auto& client : clients)
        if (client->id == gone) client->gone = true;
    }
    for (const Pressure& event : out.pressure) pressure.push_back(event);
    engine->check_invariants();
  }
  std::size_t open_requests() const { return open_.size(); }

  // The engine's process ends, and a successor takes over. Of the copies under way each page is old or new, by `coin`.
  // Whoever waits for a reply gets none: their requests, in order.
  std::vector<RequestId> restart(const std::function<bool()>& coin) {
    catalog->between_stores = nullptr;
    engine.reset();
    for (const mover::Transfer& transfer : std::exchange(transfers, {})) break_off(transfer, coin);
    orders.clear();
    auto opened = CatalogMemory::open({catalog_memory_.data(), catalog_memory_.size()}, shape());
    TERRACE_CHECK(opened.has_value());
    catalog = *opened;
    std::map<SessionId, const SessionRecord*> records;
    for (std::size_t i = 0; i < shape().sessions_max; ++i)
      if (catalog->session(i).ending == 0) records[SessionId{catalog->session(i).id}] = &catalog->session(i);
    std::vector<Survivor> survivors;
    for (const auto& client : clients) {
      client->gone |= !records.contains(client->id);
      if (!client->gone) survivors.push_back({client->id, client->table, completions_[client->id]});
    }
    std::erase_if(spaces_, [&](const auto& space) { return !records.contains(space.first.second); });
    for (auto& [key, space] : spaces_) {
      const std::uint64_t mapped = records[key.second]->mapped_bytes[key.first];
      TERRACE_CHECK(space.size() * kPageBytes >= mapped);
      space.resize(mapped / kPageBytes);
    }
    auto restored = Engine::restore(options_, *catalog, survivors);
    if (!restored) ADD_FAILURE() << restored.error().message;
    engine = std::move(*restored);
    std::vector<RequestId> lost;
    for (const auto& [id, deadline] : open_) lost.push_back(id);
    open_.clear();
    asker_.clear();
    drain();
    return lost;
  }

  std::optional<CatalogMemory> catalog;
  std::unique_ptr<Engine> engine;
  Time now{1'000};
  std::vector<std::unique_ptr<Client>> clients;
  std::vector<mover::Transfer> transfers;
  std::vector<mover::SegmentOrder> orders;
  std::vector<Pressure> pressure;
  std::map<RequestId, Result<ReplyBody>> replies;
  std::vector<RequestId> answered_in_order;  // of the replies, since a test last cleared it
  Error refusal;

 private:
  struct Sum {
    std::uint64_t tensor = 0;
    std::uint64_t version = 0;
    std::uint64_t digest = 0;
    bool operator==(const Sum&) const = default;
  };

  std::vector<std::uint64_t*> pages_at(const tier::Location& at) {
    std::vector<std::uint64_t*> pages;
    const bool block = options_.tiers[terrace::index(at.tier)].kind == tier::Kind::kBlock;
    std::vector<std::uint64_t>& space = block ? disk_ : spaces_[{terrace::index(at.tier), at.session}];
    for (const tier::Extent& piece : at.pieces.span())
      for (std::uint64_t offset = piece.offset; offset < piece.end(); offset += kPageBytes) {
        TERRACE_CHECK(offset / kPageBytes < space.size());  // memory that is not there
        pages.push_back(&space[offset / kPageBytes]);
      }
    return pages;
  }
  std::vector<std::uint64_t*> pages_of(const Client& client, Handle handle) {
    const shm::TableSlot& slot = client.slots[terrace::index(handle.slot)];
    TERRACE_CHECK(shm::Word::unpack(slot.word.load()).leased());
    std::size_t tier = 0;
    while (slot.place == kHost && options_.tiers[tier].kind != tier::Kind::kMemory) ++tier;
    if (slot.place != kHost) tier = slot.place - shm::kPlaceDevice0;
    return pages_at(
        {static_cast<TierId>(tier), client.id, tier::Pieces({slot.offset, align_up(slot.bytes, kPageBytes)}), 0});
  }
  Result<void> move(const mover::Transfer& transfer) {
    const auto to = pages_at(transfer.to);
    std::vector<std::uint64_t> bytes(to.size(), 0);
    Sum sum{transfer.tensor, transfer.version, 0};
    if (!transfer.zero_fill) {
      const auto from = pages_at(transfer.from);
      TERRACE_CHECK(from.size() == to.size());
      for (std::size_t i = 0; i < from.size(); ++i) bytes[i] = *from[i];
    }
    for (const std::uint64_t page : bytes) sum.digest = sum.digest * 31 + page;
    if (transfer.link.kind == mover::LinkKind::kBlockRead && sums_[transfer.from.first_checksum] != sum)
      return fail(ErrorCode::kDataLoss, "checksum mismatch");
    if (transfer.link.kind == mover::LinkKind::kBlockWrite) sums_[transfer.to.first_checksum] = sum;
    for (std::size_t i = 0; i < to.size(); ++i) *to[i] = bytes[i];
    return {};
  }

  // Some pages of a copy that was under way.
  void break_off(const mover::Transfer& transfer, const std::function<bool()>& coin) {
    const auto to = pages_at(transfer.to);
    const auto from = transfer.zero_fill ? to : pages_at(transfer.from);
    std::vector<std::uint64_t> bytes;
    for (const std::uint64_t* page : from) bytes.push_back(transfer.zero_fill ? 0 : *page);
    for (std::size_t i = 0; i < to.size(); ++i)
      if (coin()) *to[i] = bytes[i];
    if (transfer.link.kind == mover::LinkKind::kBlockWrite && coin()) sums_[transfer.to.first_checksum] = {};
  }
  static CatalogShape shape() { return {.sessions_max = 16, .tensors_per_session_max = 256}; }

  Options options_;
  AddressRange catalog_memory_;
  std::map<RequestId, SessionId> asker_;
  std::map<SessionId, std::uint32_t> completions_;
  std::uint64_t next_request_ = 1;
  std::map<RequestId, Time> open_;
  std::map<std::pair<std::size_t, SessionId>, std::vector<std::uint64_t>> spaces_;
  std::vector<std::uint64_t> disk_;
  std::vector<Sum> sums_;
};

}  // namespace terrace::engine
