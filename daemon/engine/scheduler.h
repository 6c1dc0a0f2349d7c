// SPDX-License-Identifier: Apache-2.0
// Orders transfers on their links by who waits (DESIGN decision 10): classes strictly, deficit round robin between
// tenants within a class, earliest deadline first within a tenant. A bounded number per link is handed down at a time.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "base/ids.h"
#include "mover/transfer.h"

namespace terrace::engine {

class Scheduler {
 public:
  Scheduler(const std::vector<mover::Link>& links, std::uint32_t in_flight_max);

  // Queues a transfer of one of the links that the scheduler was made with.
  void push(const Tenant& tenant, mover::Transfer transfer);
  // Makes a transfer that still waits more urgent; nothing happens to one that was handed down, or that is already.
  void raise(TransferId id, mover::Class urgency, Time deadline);
  // Takes a waiting transfer out; false if it was handed down.
  bool withdraw(TransferId id);
  // Nothing goes down on a link while it is held; its queue grows.
  void hold(const mover::Link& link, bool hold);
  // A transfer that was handed down is complete.
  void finished(const mover::Link& link);
  // Hands down what the links have room for.
  void dispatch(std::vector<mover::Transfer>& out);

  std::uint64_t queued(const mover::Link& link) const;
  std::uint64_t in_flight(const mover::Link& link) const;

 private:
  // Deadline, then age.
  using Key = std::pair<Time, TransferId>;
  struct TenantQueue {
    std::set<Key> order;
    std::uint64_t deficit_bytes = 0;
  };
  struct ClassQueue {
    std::map<Tenant, TenantQueue> tenants;  // those that have something waiting
    Tenant turn;                            // whose deficit is being spent
  };
  struct LinkQueue {
    std::array<ClassQueue, mover::kClasses> classes;
    std::uint32_t in_flight = 0;
    std::uint64_t waiting = 0;
    bool held = false;
  };
  struct Waiting {
    Tenant tenant;
    mover::Transfer transfer;
  };

  LinkQueue& queue(const mover::Link& link);
  void insert(const Waiting& waiting);
  void erase(const Waiting& waiting);
  TransferId pick(ClassQueue& queue);

  std::map<mover::Link, LinkQueue> links_;
  std::map<TransferId, Waiting> waiting_;
  std::uint32_t in_flight_max_;
};

}  // namespace terrace::engine
