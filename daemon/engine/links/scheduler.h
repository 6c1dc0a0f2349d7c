// SPDX-License-Identifier: Apache-2.0
// Orders transfers on their links by who waits (DESIGN decision 10): classes strictly, deficit round robin between
// tenants within a class, by their weights, and between a tenant's sessions, earliest deadline first within a session.
// What is handed down at a time is bounded per link, in number and in bytes.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "base/ids.h"
#include "mover/transfer.h"

namespace terrace::engine {

// Of a tenant, beside others: `weights` are by Tenant::socket, and 1 where there is none.
inline std::uint32_t weight_of(const std::vector<std::uint32_t>& weights, const Tenant& tenant) {
  return tenant.socket < weights.size() ? weights[tenant.socket] : 1;
}

class Scheduler {
 public:
  // What a link has under way is bounded by number and by bytes: small transfers by `in_flight_max`, which a device's
  // queue takes to be full; large ones by kInFlightBytes, since what was handed down goes before whatever comes later
  // and is more urgent. Before a demand nothing goes: of those, as much again is under way on a link that has not been
  // idle since so much was done, so that a device which answers for all of them at once has the next ones at hand. Two
  // are under way whatever their size. `weights`, as weight_of() takes them: so many times as much as one of weight 1 a
  // tenant may send in a turn.
  Scheduler(const std::vector<mover::Link>& links, std::uint32_t in_flight_max,
            std::vector<std::uint32_t> weights = {});
  static constexpr std::uint64_t kInFlightBytes = 64ull << 20;

  // Queues a transfer of one of the links that the scheduler was made with.
  void push(const Tenant& tenant, SessionId session, const mover::Transfer& transfer);
  // Makes a transfer that still waits more urgent; nothing happens to one that was handed down, or that is already.
  void raise(TransferId id, mover::Class urgency, Time deadline);
  // Takes a waiting transfer out; false if it was handed down.
  bool withdraw(TransferId id);
  // Whether it was not handed down yet.
  bool waits(TransferId id) const;
  // Nothing goes down on a link while it is held; its queue grows.
  void hold(const mover::Link& link, bool hold);
  // A transfer that was handed down is complete.
  void finished(const mover::Link& link, std::uint64_t bytes);
  // Hands down what the links have room for.
  void dispatch(std::vector<mover::Transfer>& out);

  std::uint64_t queued(const mover::Link& link) const;
  // Whether something more urgent than this waits for the link.
  bool has_before(const mover::Link& link, mover::Class urgency) const;
  std::uint64_t in_flight(const mover::Link& link) const;

 private:
  // Deadline, then age.
  using Key = std::pair<Time, TransferId>;
  // Deficit round robin (Shreedhar and Varghese, SIGCOMM 1995) over those that have something waiting.
  template <typename Name, typename Queue>
  struct Turns {
    std::map<Name, Queue> queues;
    Name turn{};  // whose deficit is being spent
    bool empty() const { return queues.empty(); }
  };
  struct SessionQueue {
    std::set<Key> order;
    std::uint64_t deficit_bytes = 0;
    bool empty() const { return order.empty(); }
  };
  struct TenantQueue {
    Turns<SessionId, SessionQueue> sessions;
    std::uint64_t deficit_bytes = 0;
    bool empty() const { return sessions.empty(); }
  };
  using ClassQueue = Turns<Tenant, TenantQueue>;
  struct Waiting {
    Tenant tenant;
    SessionId session{};
    mover::Transfer transfer;
  };
  struct LinkQueue {
    mover::Link link;
    std::optional<Waiting> alone{};  // waits where nothing else does, as most do: with nobody to take turns with
    std::array<ClassQueue, mover::kClasses> classes{};
    std::uint32_t in_flight = 0;
    std::uint64_t in_flight_bytes = 0;
    std::uint64_t done_bytes = 0;  // since it was idle
    std::uint64_t waiting = 0;     // in the classes
    bool held = false;
    std::uint64_t queued() const { return alone ? 1 : waiting; }
  };

  LinkQueue& queue(const mover::Link& link);
  const LinkQueue& queue(const mover::Link& link) const;
  bool has_room(const LinkQueue& queue) const;
  static std::uint64_t in_flight_bytes_max(const LinkQueue& queue);
  void line_up(const Waiting& waiting);
  void line_up_alone(LinkQueue& queue);
  void line_up_alone(TransferId id);
  void insert(const Waiting& waiting);
  void erase(const Waiting& waiting);
  std::uint64_t quantum_bytes(const Tenant& tenant) const;
  std::uint64_t next_bytes(const SessionQueue& queue) const;
  SessionQueue& session_in_turn(TenantQueue& queue) const;
  TransferId pick(ClassQueue& queue);
  mover::Transfer take_next(LinkQueue& queue);

  std::vector<LinkQueue> links_;           // in the links' order
  std::map<TransferId, Waiting> waiting_;  // in the links' classes
  std::uint64_t queued_ = 0;               // on all links
  std::uint32_t in_flight_max_;
  std::vector<std::uint32_t> weights_;
  std::uint64_t unit_quantum_bytes_ = 0;  // what a tenant of weight 1 may send in a turn
};

}  // namespace terrace::engine
