// SPDX-License-Identifier: Apache-2.0
#include "front/training/foreseer.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/both_ways.h"
#include "shm/layout.h"

namespace terrace::front {
namespace {

// Of links whose speed the configuration does not say: a PCIe 3 slot, and a modest NVMe drive. A plan for a slower link
// than there is moves less than it could; the reverse makes somebody wait.
constexpr double kDeviceBytesPerS = 10e9;
constexpr double kBlockBytesPerS = 2e9;

foresight::LinkPace pace(std::uint64_t bytes_per_s, double otherwise, std::uint32_t latency_us) {
  return {bytes_per_s != 0 ? static_cast<double>(bytes_per_s) : otherwise, std::int64_t{latency_us} * 1'000};
}

// A tier's way to the one below it.
foresight::PlannedTier above(foresight::LinkPace in, foresight::LinkPace out, std::uint64_t both_bytes_per_s) {
  const BothWays ways{in.bytes_per_s, out.bytes_per_s, static_cast<double>(both_bytes_per_s)};
  return {.place = 0, .capacity_bytes = 0, .in = in, .out = out, .toll = ways.toll()};
}

// Planning comes after whatever the trainers do with their processors. What cannot be had is done without.
void yield_to_others() {
  constexpr int kNice = 10;
  static_cast<void>(setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNice));
}

}  // namespace

foresight::Machine machine_of(const engine::Options& options, const config::Links& links) {
  foresight::Machine machine;
  foresight::PlannedTier of_device = above(
      pace(links.host_to_device_bytes_per_s, kDeviceBytesPerS, links.device_latency_us),
      pace(links.device_to_host_bytes_per_s, kDeviceBytesPerS, links.device_latency_us), links.device_both_bytes_per_s);
  const foresight::PlannedTier of_block =
      above(pace(links.block_read_bytes_per_s, kBlockBytesPerS, links.block_latency_us),
            pace(links.block_write_bytes_per_s, kBlockBytesPerS, links.block_latency_us), links.block_both_bytes_per_s);
  if (std::ranges::find(options.tiers, tier::Kind::kMemory, &engine::TierOptions::kind) == options.tiers.end())
    of_device = of_block;
  std::uint32_t devices = 0;
  for (std::size_t at = 0; at + 1 < options.tiers.size(); ++at) {  // the last one has the homes
    const engine::TierOptions& tier = options.tiers[at];
    const bool is_memory = tier.kind == tier::Kind::kMemory;
    foresight::PlannedTier planned = is_memory ? of_block : of_device;
    planned.place = is_memory ? shm::kPlaceHost : shm::kPlaceDevice0 + devices++;
    planned.capacity_bytes = tier.capacity_bytes;
    if (is_memory) {
      machine.has_memory = true;
      machine.memory = planned;
    } else {
      machine.devices.push_back(foresight::with_room_left(planned));
    }
  }
  return machine;
}

Foreseer::Foreseer(foresight::Machine machine, Deliver deliver)
    : machine_(std::move(machine)),
      deliver_(std::move(deliver)),
      thread_([this](const std::stop_token& stop) { run(stop); }) {}

Foreseer::~Foreseer() = default;

void Foreseer::observe(const std::vector<foresight::Observation>& seen) {
  {
    const std::scoped_lock lock(mutex_);
    for (const foresight::Observation& each : seen) {
      std::size_t& behind = behind_[each.session];
      if (behind >= kBehindOfOneMax || waiting_.size() >= kBehindMax) {
        lost_.insert(each.session);
        continue;
      }
      ++behind;
      waiting_.push_back(each);
    }
  }
  wake_.notify_one();
}

void Foreseer::forget(SessionId session) {
  {
    const std::scoped_lock lock(mutex_);
    gone_.push_back(session);
  }
  wake_.notify_one();
}

void Foreseer::run(const std::stop_token& stop) {
  yield_to_others();
  while (true) {
    std::vector<foresight::Observation> seen;
    std::vector<SessionId> gone;
    std::set<SessionId> lost;
    {
      std::unique_lock lock(mutex_);
      if (!wake_.wait(lock, stop, [&] { return !waiting_.empty() || !gone_.empty(); })) return;
      seen.swap(waiting_);
      gone.swap(gone_);
      lost.swap(lost_);
      behind_.clear();
    }
    for (const foresight::Observation& each : seen) {
      if (stop.stop_requested()) return;
      learn(each);
    }
    bound_memory();
    for (const SessionId session : lost)  // after what did arrive
      if (const auto known = learners_.find(session); known != learners_.end()) known->second.missed();
    for (const SessionId session : gone) learners_.erase(session);
  }
}

void Foreseer::learn(const foresight::Observation& seen) {
  const auto known = learners_.find(seen.session);
  const bool of_steps =
      seen.kind == foresight::Observation::Kind::kStep || seen.kind == foresight::Observation::Kind::kDeclared;
  if (known == learners_.end() && !of_steps) return;  // it marks none
  foresight::Learner& learner =
      known != learners_.end() ? known->second : learners_.try_emplace(seen.session, machine_).first->second;
  if (seen.kind == foresight::Observation::Kind::kStep) {
    learner.weigh(seen.weight);
    share();
  }
  if (auto plan = learner.observe(seen)) deliver(seen.session, std::move(*plan));
}

// What nobody else has any more goes here: a plan of a million uses takes milliseconds to free, which the engine's
// thread does not have.
void Foreseer::deliver(SessionId session, foresight::Plan plan) {
  std::erase_if(delivered_, [](const auto& each) { return each.use_count() == 1; });
  deliver_(session, delivered_.emplace_back(std::make_shared<const foresight::Plan>(std::move(plan))));
}

void Foreseer::share() {
  std::vector<foresight::Learner*> learners;
  for (auto& [session, learner] : learners_) learners.push_back(&learner);
  foresight::share(machine_, learners);
}

// Who knows most begins anew: steps without end, or steps that are never alike.
void Foreseer::bound_memory() {
  std::size_t sum = 0;
  for (const auto& [session, learner] : learners_) sum += learner.known_uses();
  while (sum > kKnownUsesMax) {
    const auto most =
        std::ranges::max_element(learners_, {}, [](const auto& each) { return each.second.known_uses(); });
    sum -= most->second.known_uses();
    most->second.forget();
  }
}

}  // namespace terrace::front
