// SPDX-License-Identifier: Apache-2.0
// A node around a real engine, in plain memory and virtual time: lease tables, tiers whose pages are one number each, a
// disk that can lie, transfers and segments that are completed when and as the caller says, and a catalog with which
// the engine's process can end at any point. After every input it requires the laws, one reply to every request by its
// deadline, and that bytes are read back where they were written.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/mapping.h"
#include "engine/engine.h"
#include "shm/layout.h"
#include "sim/violation.h"

namespace terrace::sim {

inline constexpr std::uint64_t kSegment = 2 * kMiB;
inline constexpr std::uint32_t kHost = shm::kPlaceHost;
inline constexpr std::uint32_t kDevice = shm::kPlaceDevice0;

engine::TierOptions tier_of(std::string name, tier::Kind kind, std::uint64_t capacity_bytes);
engine::TensorSpec spec_of(std::string name, std::uint64_t bytes);

// What a disk may do with a write that it reports as done.
enum class Lie : std::uint8_t { kNone, kLost, kTorn, kMisdirected };

class Node {
 public:
  struct Client {
    SessionId id{};
    SessionId space{};  // whose memory its tensors lie in
    std::vector<shm::TableSlot> slots;
    engine::LeaseTable table;
    bool gone = false;
    bool scribbles = false;  // its table holds what it likes: the laws do not speak of its words
    explicit Client(std::size_t count) : slots(count), table(slots) {}
  };

  // With a catalog, so that the engine can end at any point and have a successor: restart().
  explicit Node(engine::Options options, const engine::CatalogShape& holds = shape());

  // Sends a request; its reply comes into `replies` in time.
  RequestId send(SessionId session, engine::Body body, Time deadline = kNever);
  // The one that the next send() gives out.
  RequestId next_request() const { return RequestId{next_request_}; }
  // Sends one, completes whatever comes down, and returns its reply.
  Result<engine::ReplyBody> ask(SessionId session, engine::Body body, Time deadline = kNever);
  bool answered(RequestId id) const { return replies.contains(id); }
  Result<engine::ReplyBody> reply(RequestId id);
  std::size_t open_requests() const { return open_.size(); }
  // Virtual time; a timer rings at each deadline on the way.
  void advance(Time to);

  // A session, opened; nullptr and `refusal` if it could not be.
  Client* open(engine::OpenSession open = {}, std::size_t slots = 256, Time deadline = kNever);
  Handle create(const Client& client, std::string name, std::uint64_t bytes);
  Result<engine::ReplyBody> acquire(const Client& client, std::uint32_t place, engine::Modes modes,
                                    std::vector<Handle> set, Time deadline = kNever);
  // As a client's deleter does: in the word, and the doorbell if somebody waits.
  void release(const Client& client, Handle handle, shm::Mode mode);
  // Without the doorbell: whether it is to be rung.
  static bool release_in_table(const Client& client, Handle handle, shm::Mode mode);
  // As a client that gives an overwrite up.
  void abandon(const Client& client, Handle handle);
  void ring(const Client& client);
  // Writes `value` under a lease, through the given place, and releases it.
  void write(const Client& client, Handle handle, std::uint64_t value, std::uint32_t place = kDevice,
             shm::Mode mode = shm::Mode::kOverwrite);
  // What a reader at `place` sees, or the error.
  Result<std::uint64_t> read(const Client& client, Handle handle, std::uint32_t place = kDevice);
  // The bytes of a leased copy, by its table slot.
  void fill(const Client& client, Handle handle, std::uint64_t value);
  // The number it was filled with; UINT64_MAX if the pages do not belong together.
  std::uint64_t look(const Client& client, Handle handle);

  void complete_transfer(std::size_t index, std::optional<Error> error = {}, TierId failed = {});
  // As a disk that reports success. `harmed` is told the engine's numbers of the tensors whose bytes on it are no
  // longer what was written, before the engine hears of anything. A misdirected write goes to the page `elsewhere`.
  void complete_write(std::size_t index, Lie lie, std::uint64_t elsewhere,
                      const std::function<void(std::uint64_t)>& harmed);
  // The transfer fails, with some of its pages copied, by `coin`.
  void fail_transfer(std::size_t index, Error error, TierId failed, const std::function<bool()>& coin);
  void complete_order(std::size_t index, std::optional<Error> error = {});
  void complete_orders();
  void settle();
  // Takes what the engine puts out, and checks the laws.
  void drain();

  engine::Status status() { return engine->status(); }
  // Flips a bit of every page of the disk.
  void corrupt_disk();
  // Flips a bit of one page; the number of the tensor whose bytes it held, or did.
  std::uint64_t flip_bit(std::uint64_t page);
  std::uint64_t disk_pages() const { return disk_.size(); }

  // The engine's process ends, and a successor takes over. Of the copies under way each page is old or new, by `coin`.
  // Whoever waits for a reply gets none: their requests, in order. If it lingers, what it had begun on the block tier
  // is not done yet: see land().
  std::vector<RequestId> restart(const std::function<bool()>& coin, bool lingers = false,
                                 std::span<const engine::LostSegment> lost_segments = {});
  // Whether what former processes had begun on the block tier is not done to the last.
  bool former_at_work() const { return options_.former_at_work; }
  // Some pages of it, by `coin`, land where those processes wanted them.
  void land(const std::function<bool()>& coin);
  // The last of it is done, and the engine is told.
  void end_former(const std::function<bool()>& coin);
  // What a successor finds: the sessions with their tables, and the catalog's memory.
  std::vector<engine::Survivor> survivors() const;
  std::span<std::byte> catalog_bytes() { return {catalog_range.data(), catalog_range.size()}; }
  static engine::CatalogShape shape() { return {.sessions_max = 16, .tensors_per_session_max = 256}; }

  AddressRange catalog_range;
  engine::CatalogMemory catalog;
  std::unique_ptr<engine::Engine> engine;
  Time now{1'000};
  std::vector<std::unique_ptr<Client>> clients;
  std::vector<mover::Transfer> transfers;
  std::vector<mover::SegmentOrder> orders;
  std::vector<engine::Pressure> pressure;
  std::map<RequestId, Result<engine::ReplyBody>> replies;
  std::vector<RequestId> answered_in_order;  // of the replies, since somebody last cleared it
  Error refusal;

 private:
  // What stands beside the block tier: which bytes ought to be there.
  struct Sum {
    std::uint64_t tensor = 0;
    std::uint64_t version = 0;
    std::uint64_t digest = 0;
    bool operator==(const Sum&) const = default;
  };

  // A read or write on the block tier that outlived its process, with the bytes that it brings.
  struct Late {
    tier::Location to;
    std::vector<std::uint64_t> bytes;
  };

  bool on_block(const tier::Location& at) const;
  static bool is_of_block(const mover::Transfer& transfer);
  void outlive(const mover::Transfer& transfer);
  std::vector<std::uint64_t*> pages_at(const tier::Location& at);
  std::vector<std::uint64_t*> pages_of(const Client& client, Handle handle);
  Result<void> move(const mover::Transfer& transfer, Lie lie, std::uint64_t elsewhere,
                    const std::function<void(std::uint64_t)>& harmed);
  void done(const mover::Transfer& transfer, Result<void> result, TierId failed);
  void break_off(const mover::Transfer& transfer, const std::function<bool()>& coin);
  std::map<SessionId, const engine::SessionRecord*> surviving_records() const;

  engine::Options options_;
  std::map<RequestId, SessionId> asker_;
  std::map<SessionId, std::uint32_t> completions_;
  std::uint64_t next_request_ = 1;
  std::map<RequestId, Time> open_;
  std::map<std::pair<std::size_t, SessionId>, std::vector<std::uint64_t>> spaces_;
  // What was stitched. Pages of what is gone are known for whoever still writes there.
  struct Seam {
    std::vector<std::uint64_t> pages;
    bool gone = false;
  };
  std::map<std::pair<std::size_t, SessionId>, std::map<std::uint64_t, Seam>> seams_;  // by tier and space; by offset
  std::vector<std::uint64_t> disk_;
  std::vector<std::uint64_t> owners_;  // of the disk's pages: the tensors last written there
  std::vector<Sum> sums_;
  std::vector<Late> late_;
};

}  // namespace terrace::sim
