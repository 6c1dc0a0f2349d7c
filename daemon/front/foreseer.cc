// SPDX-License-Identifier: Apache-2.0
#include "front/foreseer.h"

#include <sys/resource.h>
#include <unistd.h>

#include <utility>

#include "shm/layout.h"

namespace terrace::front {
namespace {

// Of links whose speed the configuration does not say: a PCIe 3 slot, and a modest NVMe drive. A plan for a slower link
// than there is moves less than it could; the reverse makes somebody wait.
constexpr double kDeviceBytesPerS = 10e9;
constexpr double kBlockBytesPerS = 2e9;
constexpr double kUsable = 0.97;  // of a tier: extents do not pack
constexpr std::int64_t kLeadNs = 100'000'000;

foresight::LinkPace pace(std::uint64_t bytes_per_s, double otherwise, std::uint32_t latency_us) {
  return {bytes_per_s != 0 ? static_cast<double>(bytes_per_s) : otherwise, std::int64_t{latency_us} * 1'000};
}

// Planning comes after whatever the trainers do with their processors. What cannot be had is done without.
void yield_to_others() {
  constexpr int kNice = 10;
  static_cast<void>(setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNice));
}

}  // namespace

foresight::Machine machine_of(const engine::Options& options, const config::Links& links) {
  foresight::Machine machine;
  machine.lead_ns = kLeadNs;
  const auto usable = [](const engine::TierOptions& tier) {
    return static_cast<std::uint64_t>(static_cast<double>(tier.capacity_bytes) * kUsable);
  };
  const foresight::LinkPace read = pace(links.block_read_bytes_per_s, kBlockBytesPerS, links.block_latency_us);
  const foresight::LinkPace write = pace(links.block_write_bytes_per_s, kBlockBytesPerS, links.block_latency_us);
  bool has_memory = false;
  for (const engine::TierOptions& tier : options.tiers) has_memory |= tier.kind == tier::Kind::kMemory;
  std::uint32_t devices = 0;
  for (std::size_t at = 0; at + 1 < options.tiers.size(); ++at) {  // the last one has the homes
    const engine::TierOptions& tier = options.tiers[at];
    if (tier.kind == tier::Kind::kMemory) {
      machine.has_memory = true;
      machine.memory = {shm::kPlaceHost, usable(tier), read, write};
    } else if (has_memory) {
      machine.devices.push_back({shm::kPlaceDevice0 + devices++, usable(tier),
                                 pace(links.host_to_device_bytes_per_s, kDeviceBytesPerS, links.device_latency_us),
                                 pace(links.device_to_host_bytes_per_s, kDeviceBytesPerS, links.device_latency_us)});
    } else {
      machine.devices.push_back({shm::kPlaceDevice0 + devices++, usable(tier), read, write});
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
    lost_ |= waiting_.size() + seen.size() > kBehindMax;
    if (lost_) return;
    waiting_.insert(waiting_.end(), seen.begin(), seen.end());
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
    bool lost = false;
    {
      std::unique_lock lock(mutex_);
      if (!wake_.wait(lock, stop, [&] { return !waiting_.empty() || !gone_.empty(); })) return;
      seen.swap(waiting_);
      gone.swap(gone_);
      lost = std::exchange(lost_, false);
    }
    for (const foresight::Observation& each : seen) {
      if (stop.stop_requested()) return;
      learn(each);
    }
    if (lost)  // after what did arrive
      for (auto& [session, learner] : learners_) learner.missed();
    for (const SessionId session : gone) learners_.erase(session);
  }
}

void Foreseer::learn(const foresight::Observation& seen) {
  const auto known = learners_.find(seen.session);
  if (known == learners_.end() && seen.kind != foresight::Observation::Kind::kStep) return;  // it marks no steps
  foresight::Learner& learner =
      known != learners_.end() ? known->second : learners_.try_emplace(seen.session, machine_).first->second;
  learner.share(learners_.size());
  if (auto plan = learner.observe(seen))
    deliver_(seen.session, std::make_shared<const foresight::Plan>(std::move(*plan)));
}

}  // namespace terrace::front
