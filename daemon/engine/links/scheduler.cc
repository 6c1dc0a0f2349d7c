// SPDX-License-Identifier: Apache-2.0
#include "engine/links/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"

namespace terrace::engine {
namespace {

// What a tenant of weight 1, and a session of any, may send in one turn of a link.
constexpr std::uint64_t kTenantQuantumBytes = 16 * kMiB;
constexpr std::uint64_t kSessionQuantumBytes = 4 * kMiB;
// Where weights are far apart, turns are shorter for all, so that the heaviest's is not long; a lesser tenant's large
// transfer then waits for more of them, of which there is a bound too.
constexpr std::uint64_t kHeaviestQuantumBytes = 64 * kMiB;
constexpr std::uint64_t kTenantQuantumBytesMin = 256 * kKiB;
constexpr std::uint32_t kAlwaysInFlight = 2;

std::size_t index(mover::Class urgency) { return static_cast<std::size_t>(urgency); }

// Whose turn it is: moves on, each with a quantum more, until the one in turn may send its next. Asked again before
// anything was sent it says the same.
template <typename Turns, typename QuantumBytes, typename NextBytes>
auto& in_turn(Turns& turns, QuantumBytes quantum_bytes, NextBytes next_bytes) {
  auto at = turns.queues.lower_bound(turns.turn);
  if (at == turns.queues.end()) at = turns.queues.begin();
  while (turns.queues.size() > 1 && !(at->first == turns.turn && at->second.deficit_bytes >= next_bytes(at->second))) {
    if (at->first == turns.turn && ++at == turns.queues.end()) at = turns.queues.begin();
    turns.turn = at->first;
    at->second.deficit_bytes += quantum_bytes(at->first);
  }
  return at->second;
}

// Who is alone is not charged: nobody else's turn comes later for it.
template <typename Turns, typename Queue>
void charge(const Turns& turns, Queue& queue, std::uint64_t bytes) {
  if (turns.queues.size() > 1) queue.deficit_bytes -= bytes;
}

template <typename Turns, typename Name>
void drop_if_empty(Turns& turns, const Name& name) {
  const auto found = turns.queues.find(name);
  if (found->second.empty()) turns.queues.erase(found);
}

// Of the queues, of which a node has a few.
template <typename Queues>
auto& queue_of(Queues& queues, const mover::Link& link) {
  const auto found = std::ranges::find_if(queues, [&](const auto& queue) { return queue.link == link; });
  TERRACE_CHECK(found != queues.end());
  return *found;
}

}  // namespace

Scheduler::Scheduler(const std::vector<mover::Link>& links, std::uint32_t in_flight_max,
                     std::vector<std::uint32_t> weights)
    : in_flight_max_(in_flight_max), weights_(std::move(weights)) {
  TERRACE_CHECK(in_flight_max > 0);
  const std::uint64_t heaviest = weights_.empty() ? 1 : std::max(*std::ranges::max_element(weights_), 1u);
  unit_quantum_bytes_ = std::clamp(kHeaviestQuantumBytes / heaviest, kTenantQuantumBytesMin, kTenantQuantumBytes);
  for (const mover::Link& link : links) links_.push_back({.link = link});
  std::ranges::sort(links_, {}, &LinkQueue::link);
}

Scheduler::LinkQueue& Scheduler::queue(const mover::Link& link) { return queue_of(links_, link); }
const Scheduler::LinkQueue& Scheduler::queue(const mover::Link& link) const { return queue_of(links_, link); }

void Scheduler::insert(const Waiting& waiting) {
  const mover::Transfer& transfer = waiting.transfer;
  LinkQueue& link = queue(transfer.link);
  TenantQueue& tenant = link.classes[index(transfer.urgency)].queues[waiting.tenant];
  tenant.sessions.queues[waiting.session].order.emplace(transfer.deadline, transfer.id);
  ++link.waiting;
}

void Scheduler::erase(const Waiting& waiting) {
  const mover::Transfer& transfer = waiting.transfer;
  LinkQueue& link = queue(transfer.link);
  ClassQueue& classed = link.classes[index(transfer.urgency)];
  TenantQueue& tenant = classed.queues.at(waiting.tenant);
  TERRACE_CHECK(tenant.sessions.queues.at(waiting.session).order.erase({transfer.deadline, transfer.id}) == 1);
  drop_if_empty(tenant.sessions, waiting.session);
  drop_if_empty(classed, waiting.tenant);
  --link.waiting;
}

void Scheduler::push(const Tenant& tenant, SessionId session, const mover::Transfer& transfer) {
  LinkQueue& link = queue(transfer.link);
  ++queued_;
  if (link.queued() == 0) {
    link.alone.emplace(tenant, session, transfer);
    return;
  }
  line_up_alone(link);
  line_up({tenant, session, transfer});
}

void Scheduler::line_up(const Waiting& waiting) {
  const auto [at, added] = waiting_.try_emplace(waiting.transfer.id, waiting);
  TERRACE_CHECK(added);
  insert(at->second);
}

bool Scheduler::waits(TransferId id) const {
  const auto is_alone = [id](const auto& queue) { return queue.alone && queue.alone->transfer.id == id; };
  return waiting_.contains(id) || std::ranges::any_of(links_, is_alone);
}

void Scheduler::line_up_alone(LinkQueue& queue) {
  if (queue.alone) line_up(*queue.alone);
  queue.alone.reset();
}

void Scheduler::line_up_alone(TransferId id) {
  for (LinkQueue& queue : links_)
    if (queue.alone && queue.alone->transfer.id == id) line_up_alone(queue);
}

void Scheduler::raise(TransferId id, mover::Class urgency, Time deadline) {
  line_up_alone(id);
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
  line_up_alone(id);
  const auto found = waiting_.find(id);
  if (found == waiting_.end()) return false;
  erase(found->second);
  waiting_.erase(found);
  --queued_;
  return true;
}

void Scheduler::hold(const mover::Link& link, bool hold) { queue(link).held = hold; }

void Scheduler::finished(const mover::Link& link, std::uint64_t bytes) {
  LinkQueue& done = queue(link);
  TERRACE_CHECK(done.in_flight > 0 && done.in_flight_bytes >= bytes);
  --done.in_flight;
  done.in_flight_bytes -= bytes;
  done.done_bytes = done.in_flight == 0 ? 0 : done.done_bytes + bytes;
}

// With two under way, one's last chunks do not leave the device idle before the next one's first.
bool Scheduler::has_room(const LinkQueue& queue) const {
  return queue.in_flight < in_flight_max_ &&
         (queue.in_flight < kAlwaysInFlight || queue.in_flight_bytes < in_flight_bytes_max(queue));
}

// The first of several who ask at the same time must not have all of its own handed down before the others have asked.
std::uint64_t Scheduler::in_flight_bytes_max(const LinkQueue& queue) {
  const bool demand_waits = queue.alone ? queue.alone->transfer.urgency == mover::Class::kDemand
                                        : !queue.classes[index(mover::Class::kDemand)].empty();
  return kInFlightBytes + (demand_waits ? std::min(queue.done_bytes, kInFlightBytes) : 0);
}

std::uint64_t Scheduler::quantum_bytes(const Tenant& tenant) const {
  return unit_quantum_bytes_ * weight_of(weights_, tenant);
}

std::uint64_t Scheduler::next_bytes(const SessionQueue& queue) const {
  return waiting_.at(queue.order.begin()->second).transfer.bytes;
}

Scheduler::SessionQueue& Scheduler::session_in_turn(TenantQueue& queue) const {
  return in_turn(
      queue.sessions, [](SessionId) { return kSessionQuantumBytes; },
      [this](const SessionQueue& one) { return next_bytes(one); });
}

TransferId Scheduler::pick(ClassQueue& queue) {
  TenantQueue& tenant = in_turn(
      queue, [this](const Tenant& one) { return quantum_bytes(one); },
      [this](TenantQueue& one) { return next_bytes(session_in_turn(one)); });
  SessionQueue& session = session_in_turn(tenant);
  const std::uint64_t bytes = next_bytes(session);
  charge(queue, tenant, bytes);
  charge(tenant.sessions, session, bytes);
  return session.order.begin()->second;
}

mover::Transfer Scheduler::take_next(LinkQueue& queue) {
  --queued_;
  if (queue.alone) {
    const mover::Transfer next = queue.alone->transfer;
    queue.alone.reset();
    return next;
  }
  const auto classed =
      std::find_if(queue.classes.begin(), queue.classes.end(), [](const ClassQueue& c) { return !c.empty(); });
  const auto chosen = waiting_.find(pick(*classed));
  erase(chosen->second);
  const mover::Transfer next = chosen->second.transfer;
  waiting_.erase(chosen);
  return next;
}

void Scheduler::dispatch(std::vector<mover::Transfer>& out) {
  if (queued_ == 0) return;
  for (LinkQueue& queue : links_) {
    while (!queue.held && queue.queued() > 0 && has_room(queue)) {
      out.push_back(take_next(queue));
      queue.in_flight_bytes += out.back().bytes;
      ++queue.in_flight;
    }
  }
}

std::uint64_t Scheduler::queued(const mover::Link& link) const { return queue(link).queued(); }
bool Scheduler::has_before(const mover::Link& link, mover::Class urgency) const {
  const LinkQueue& waits = queue(link);
  if (waits.alone) return waits.alone->transfer.urgency < urgency;
  const auto& classes = waits.classes;
  return std::any_of(classes.begin(), classes.begin() + index(urgency), [](const ClassQueue& c) { return !c.empty(); });
}
std::uint64_t Scheduler::in_flight(const mover::Link& link) const { return queue(link).in_flight; }

}  // namespace terrace::engine
