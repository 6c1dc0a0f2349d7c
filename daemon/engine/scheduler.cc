// SPDX-License-Identifier: Apache-2.0
#include "engine/scheduler.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/check.h"

namespace terrace::engine {
namespace {

// What a tenant may send in one turn of a link.
constexpr std::uint64_t kQuantumBytes = 16 * kMiB;

std::size_t index(mover::Class urgency) { return static_cast<std::size_t>(urgency); }

}  // namespace

Scheduler::Scheduler(const std::vector<mover::Link>& links, std::uint32_t in_flight_max)
    : in_flight_max_(in_flight_max) {
  TERRACE_CHECK(in_flight_max > 0);
  for (const mover::Link& link : links) links_.try_emplace(link);
}

Scheduler::LinkQueue& Scheduler::queue(const mover::Link& link) {
  const auto found = links_.find(link);
  TERRACE_CHECK(found != links_.end());
  return found->second;
}

void Scheduler::insert(const Waiting& waiting) {
  const mover::Transfer& transfer = waiting.transfer;
  LinkQueue& link = queue(transfer.link);
  link.classes[index(transfer.urgency)].tenants[waiting.tenant].order.emplace(transfer.deadline, transfer.id);
  ++link.waiting;
}

void Scheduler::erase(const Waiting& waiting) {
  const mover::Transfer& transfer = waiting.transfer;
  LinkQueue& link = queue(transfer.link);
  ClassQueue& queue = link.classes[index(transfer.urgency)];
  const auto tenant = queue.tenants.find(waiting.tenant);
  TERRACE_CHECK(tenant != queue.tenants.end() && tenant->second.order.erase({transfer.deadline, transfer.id}) == 1);
  if (tenant->second.order.empty()) queue.tenants.erase(tenant);
  --link.waiting;
}

void Scheduler::push(const Tenant& tenant, mover::Transfer transfer) {
  const TransferId id = transfer.id;
  const auto [at, added] = waiting_.try_emplace(id, Waiting{tenant, std::move(transfer)});
  TERRACE_CHECK(added);
  insert(at->second);
}

void Scheduler::raise(TransferId id, mover::Class urgency, Time deadline) {
  const auto found = waiting_.find(id);
  if (found == waiting_.end()) return;
  mover::Transfer& transfer = found->second.transfer;
  if (transfer.urgency <= urgency && transfer.deadline <= deadline) return;
  erase(found->second);
  transfer.urgency = std::min(transfer.urgency, urgency);
  transfer.deadline = std::min(transfer.deadline, deadline);
  insert(found->second);
}

bool Scheduler::withdraw(TransferId id) {
  const auto found = waiting_.find(id);
  if (found == waiting_.end()) return false;
  erase(found->second);
  waiting_.erase(found);
  return true;
}

void Scheduler::hold(const mover::Link& link, bool hold) { queue(link).held = hold; }

void Scheduler::finished(const mover::Link& link) {
  LinkQueue& done = queue(link);
  TERRACE_CHECK(done.in_flight > 0);
  --done.in_flight;
}

TransferId Scheduler::pick(ClassQueue& queue) {
  auto tenant = queue.tenants.lower_bound(queue.turn);
  if (tenant == queue.tenants.end()) tenant = queue.tenants.begin();
  while (true) {
    const TransferId first = tenant->second.order.begin()->second;
    const std::uint64_t bytes = waiting_.at(first).transfer.bytes;
    if (queue.tenants.size() == 1) return first;
    if (tenant->first == queue.turn && tenant->second.deficit_bytes >= bytes) {
      tenant->second.deficit_bytes -= bytes;
      return first;
    }
    if (tenant->first == queue.turn && ++tenant == queue.tenants.end()) tenant = queue.tenants.begin();
    queue.turn = tenant->first;
    tenant->second.deficit_bytes += kQuantumBytes;
  }
}

void Scheduler::dispatch(std::vector<mover::Transfer>& out) {
  for (auto& [link, queue] : links_) {
    while (!queue.held && queue.waiting > 0 && queue.in_flight < in_flight_max_) {
      const auto classed = std::find_if(queue.classes.begin(), queue.classes.end(),
                                        [](const ClassQueue& c) { return !c.tenants.empty(); });
      const auto chosen = waiting_.find(pick(*classed));
      erase(chosen->second);
      out.push_back(std::move(chosen->second.transfer));
      waiting_.erase(chosen);
      ++queue.in_flight;
    }
  }
}

std::uint64_t Scheduler::queued(const mover::Link& link) const { return links_.at(link).waiting; }
std::uint64_t Scheduler::in_flight(const mover::Link& link) const { return links_.at(link).in_flight; }

}  // namespace terrace::engine
