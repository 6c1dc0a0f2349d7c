// SPDX-License-Identifier: Apache-2.0
// Plans 1,000,000 accesses: forward and backward through 200,000 tensors, more than fit, on three tiers. Prints the
// seconds of CPU that the plan takes, and the milliseconds of the longest piece of work that an engine does in one go
// while it is given such plans and a trainer does what they say.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <memory>
#include <utility>

#include "base/check.h"
#include "engine/engine.h"
#include "foresight/planner.h"
#include "rehearsal/tiers.h"
#include "rehearsal/trainer.h"

namespace {

using namespace terrace;
using namespace terrace::foresight;

constexpr std::uint32_t kTensors = 200'000;
constexpr std::uint64_t kBytes = 1 << 20;
constexpr std::int64_t kComputeNs = 40'000;
constexpr int kSteps = 2;
constexpr std::size_t kLogged = 25;  // accesses in a millisecond, after which the reactor looks into the log

double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

void use(Template& known, std::uint32_t tensor, shm::Mode mode) {
  TemplateUse one;
  one.slot = Slot{tensor};
  one.place = shm::kPlaceDevice0;
  one.mode = mode;
  one.bytes = kBytes;
  one.at_ns = static_cast<std::int64_t>(known.uses.size()) * kComputeNs;
  one.trust = kTrusted;
  known.uses.push_back(one);
}

Template forward_and_backward() {
  Template known;
  for (std::uint32_t tensor = 0; tensor < kTensors; ++tensor) {
    use(known, tensor, shm::Mode::kRead);
    use(known, tensor, shm::Mode::kRead);
  }
  for (std::uint32_t tensor = kTensors; tensor-- > 0;) {
    use(known, tensor, shm::Mode::kRead);
    use(known, tensor, shm::Mode::kRead);
    use(known, tensor, shm::Mode::kWrite);
  }
  known.period_ns = static_cast<std::int64_t>(known.uses.size()) * kComputeNs;
  return known;
}

Machine machine_of(const std::vector<engine::TierOptions>& tiers) {
  Machine machine;
  machine.devices.push_back({shm::kPlaceDevice0, usable_bytes(tiers[0].capacity_bytes), {50e9, 0}, {50e9, 0}});
  machine.has_memory = true;
  machine.memory = {shm::kPlaceHost, usable_bytes(tiers[1].capacity_bytes), {25e9, 0}, {25e9, 0}};
  return machine;
}

// An engine with one session, on tiers that have done at once whatever they are told.
class Node {
 public:
  explicit Node(const std::vector<engine::TierOptions>& tiers)
      : memory_(*engine::CatalogMemory::map(kShape)),
        catalog_(engine::CatalogMemory::format({memory_.data(), memory_.size()}, kShape)),
        trainer_(kTensors) {
    engine::Options options;
    options.tiers = tiers;
    options.sessions_max = kShape.sessions_max;
    options.make_policy = engine::make_next_use_policy;
    options.observe = true;
    engine_ = std::move(*engine::Engine::create(std::move(options), catalog_));
    engine::OpenSession open;
    open.table = trainer_.table();
    session_ = std::get<engine::SessionOpened>(ask(std::move(open))).session;
    for (std::uint32_t made = 0; made < kTensors;) {
      engine::CreateTensors create;
      for (; create.tensors.size() < kCreated && made < kTensors; ++made) {
        create.tensors.emplace_back();
        create.tensors.back().name = fmt::format("{}", made);
        create.tensors.back().bytes = kBytes;
      }
      trainer_.created(std::get<engine::Handles>(ask(std::move(create))).tensors);
    }
    for (std::uint32_t tensor = 0; tensor < kTensors; ++tensor) lease(tensor, shm::Mode::kOverwrite);
    slices_.clear();
  }

  // Whoever made the plan keeps it for longer than the engine, as front::Foreseer does.
  void step(const Template& known, const std::shared_ptr<const Plan>& plan) {
    ask(engine::MarkStep{});
    work([&] { engine_->plan(now_, session_, plan); });
    for (const TemplateUse& each : known.uses) lease(static_cast<std::uint32_t>(each.slot), each.mode);
  }
  // Seconds of CPU, by input of the steps so far.
  const std::vector<double>& slices() const { return slices_; }

 private:
  static constexpr engine::CatalogShape kShape{.sessions_max = 1, .tensors_per_session_max = kTensors};
  static constexpr std::size_t kCreated = 4096;

  template <typename Work>
  void work(const Work& once) {
    const double begin = cpu_seconds();
    once();
    slices_.push_back(cpu_seconds() - begin);
    carry_out();
  }

  void carry_out() {
    for (bool more = true; more;) {
      engine::Output output = engine_->take_output();
      for (engine::Reply& reply : output.replies) {
        engine_->answered(reply.id);
        answer_ = std::move(*reply.result);
      }
      for (const mover::SegmentOrder& order : output.segment_orders)
        work([&] { engine_->segment_done(now_, {order, {}}); });
      for (const mover::Transfer& transfer : output.transfers)
        work([&] { engine_->transfer_done(now_, {transfer.id, {}, {}}); });
      more = !output.transfers.empty() || !output.segment_orders.empty();
    }
  }

  engine::ReplyBody ask(engine::Body body) {
    const engine::Request request{RequestId{++asked_}, session_, kNever, std::move(body)};
    work([&] { engine_->submit(now_, request); });
    return std::move(answer_);
  }

  void lease(std::uint32_t tensor, shm::Mode mode) {
    workload::Run run;
    if (mode != shm::Mode::kOverwrite) run.read = {tensor};
    if (mode != shm::Mode::kRead) run.write = {tensor};
    rehearsal::Trainer::Set set = trainer_.set_of(run);
    if (!trainer_.lease(now_, set, shm::kPlaceDevice0))
      ask(engine::Acquire{shm::kPlaceDevice0, set.modes, set.tensors});
    trainer_.hold(std::move(set));
    now_ = now_ + Duration(kComputeNs);
    if (trainer_.release()) work([&] { engine_->lease_ended(now_, session_); });
    if (++leases_ % kLogged != 0) return;
    const auto log = trainer_.take_log();
    work([&] { engine_->accessed(now_, session_, log, log.size()); });
  }

  AddressRange memory_;
  engine::CatalogMemory catalog_;
  rehearsal::Trainer trainer_;
  std::unique_ptr<engine::Engine> engine_;
  SessionId session_{};
  engine::ReplyBody answer_;
  std::uint64_t asked_ = 0;
  std::uint64_t leases_ = 0;
  Time now_{1};
  std::vector<double> slices_;
};

// The same inputs each time. What one of them takes longer in one of two runs is not the engine's.
std::vector<double> slices_of(const std::vector<engine::TierOptions>& tiers, const Template& known,
                              const std::shared_ptr<const Plan>& plan) {
  Node node(tiers);
  for (int step = 0; step < kSteps; ++step) node.step(known, plan);
  return node.slices();
}

}  // namespace

int main() {
  workload::Workload tensors;
  tensors.tensors.resize(kTensors, {.bytes = kBytes});
  workload::Node node;
  node.hbm_bytes = kTensors / 2 * kBytes;
  node.host_bytes = kTensors * 3 / 4 * kBytes;
  node.block_bytes = workload::kUnlimited;
  const auto tiers = rehearsal::tiers_of(node, tensors, 1);
  const Template known = forward_and_backward();
  const double begin = cpu_seconds();
  const auto made = std::make_shared<const Plan>(plan(machine_of(tiers), {&known, &known, &known}, 1));
  const double seconds = cpu_seconds() - begin;
  TERRACE_CHECK(made->uses.size() == known.uses.size());
  std::vector<double> slices = slices_of(tiers, known, made);
  std::ranges::transform(slices, slices_of(tiers, known, made), slices.begin(), std::ranges::min);
  const double longest = std::ranges::max(slices);
  std::printf("%.3f %.3f\n", seconds, longest * 1e3);
}
