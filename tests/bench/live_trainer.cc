// SPDX-License-Identifier: Apache-2.0
#include "bench/live_trainer.h"

#include <fmt/format.h>
#include <sys/prctl.h>

#include <algorithm>
#include <thread>

#include "bench/contents.h"

namespace terrace::bench {
namespace {

using std::chrono::nanoseconds;
using std::chrono::steady_clock;

Place place_of(const workload::Run& run) {
  return run.place == workload::Place::kHbm ? Place::device(0) : Place::host();
}

Mode mode_of(const workload::Run& run, workload::TensorId tensor) {
  if (std::ranges::find(run.write, tensor) == run.write.end()) return Mode::kRead;
  return std::ranges::find(run.read, tensor) == run.read.end() ? Mode::kOverwrite : Mode::kWrite;
}

}  // namespace

Result<LiveTrainer> LiveTrainer::make(Client& client, const workload::Workload& workload, Touch touch) {
  ::prctl(PR_SET_TIMERSLACK, 1UL);  // sleeps end when they should
  LiveTrainer trainer(client, workload, touch);
  std::vector<TensorSpec> specs;
  for (std::size_t id = 0; id < workload.tensors.size(); ++id)
    specs.push_back({.name = fmt::format("{}", id), .bytes = workload.tensors[id].bytes});
  auto tensors = client.create(specs);
  if (!tensors) return std::unexpected(tensors.error());
  trainer.tensors_ = std::move(*tensors);
  trainer.versions_.assign(workload.tensors.size(), 0);
  for (std::size_t id = 0; id < workload.tensors.size(); ++id) {
    if (!workload.tensors[id].home) continue;
    auto lease = client.acquire(trainer.tensors_[id], {.mode = Mode::kOverwrite});
    if (!lease) return std::unexpected(lease.error());
    fill(lease->writable_bytes(), id, 0);
  }
  return trainer;
}

Result<LiveStep> LiveTrainer::step() {
  const std::size_t within = steps_ % workload_->steps.size();
  LiveStep step{.number = ++steps_, .kind = workload_->steps[within].kind};
  late_ = {};
  const auto begin = steady_clock::now();
  if (const auto marked = client_->mark_step(static_cast<StepKind>(step.kind)); !marked)
    return std::unexpected(marked.error());
  for (const workload::Run& each : workload_->runs_of(within))
    if (const auto ran = run(each, step); !ran)
      return fail(ran.error().code, fmt::format("step {}, run '{}': {}", steps_, each.name, ran.error().message));
  step.makespan = steady_clock::now() - begin;
  return step;
}

Result<void> LiveTrainer::run(const workload::Run& run, LiveStep& step) {
  {
    auto leases = lease(run);
    if (!leases) return std::unexpected(leases.error());
    const auto begin = steady_clock::now();
    for (Lease& each : *leases) {
      const auto tensor = static_cast<workload::TensorId>(std::stoul(each.tensor().name()));
      if (const auto right = work_on(each, tensor, step); !right) return right;
    }
    std::this_thread::sleep_until(begin + run.compute - late_);
    const nanoseconds took = steady_clock::now() - begin;
    step.compute += took;
    late_ += took - run.compute;
  }
  return free(run.free);
}

Result<std::vector<Lease>> LiveTrainer::lease(const workload::Run& run) {
  std::vector<Tensor> set;
  LeaseOptions options{.place = place_of(run)};
  for (const workload::TensorId tensor : workload::leased(run)) {
    set.push_back(tensors_[tensor]);
    options.modes.push_back(mode_of(run, tensor));
  }
  return client_->acquire(set, options);
}

Result<void> LiveTrainer::work_on(Lease& lease, workload::TensorId tensor, LiveStep& step) {
  const bool all = touch_ == Touch::kEveryByte;
  if (lease.mode() != Mode::kOverwrite) {
    const auto right = (all ? check : check_samples)(lease.bytes(), tensor, versions_[tensor]);
    if (!right) return right;
    ++step.tensors_checked;
  }
  if (lease.mode() != Mode::kRead) (all ? fill : fill_samples)(lease.writable_bytes(), tensor, ++versions_[tensor]);
  return {};
}

Result<void> LiveTrainer::free(std::span<const workload::TensorId> ids) {
  if (ids.empty()) return {};
  std::vector<Tensor> dead;
  for (const workload::TensorId id : ids) dead.push_back(tensors_[id]);
  return client_->dont_need(dead);
}

}  // namespace terrace::bench
