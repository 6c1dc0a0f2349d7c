// SPDX-License-Identifier: Apache-2.0
#include "rehearsal/trainer.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "shm/word.h"

namespace terrace::rehearsal {

std::uint32_t place_of(const workload::Run& run) {
  return run.place == workload::Place::kHbm ? shm::kPlaceDevice0 : shm::kPlaceHost;
}

shm::Mode mode_of(const workload::Run& run, workload::TensorId tensor) {
  if (std::ranges::find(run.write, tensor) == run.write.end()) return shm::Mode::kRead;
  return std::ranges::find(run.read, tensor) == run.read.end() ? shm::Mode::kOverwrite : shm::Mode::kWrite;
}

std::optional<std::uint32_t> Trainer::place(workload::TensorId tensor) const {
  const Slot slot = handles_[tensor].slot;
  const shm::State state = table_.load(slot).state;
  if (state == shm::State::kFree || state == shm::State::kAbsent) return std::nullopt;
  return slots_[index(slot)].place;
}

std::vector<Trainer::Ask> Trainer::asks_of(const workload::Run& run) const {
  std::vector<Ask> asks{{shm::Mode::kRead, {}}, {shm::Mode::kWrite, {}}, {shm::Mode::kOverwrite, {}}};
  for (const workload::TensorId tensor : workload::leased(run))
    asks[static_cast<std::size_t>(mode_of(run, tensor))].tensors.push_back(handles_[tensor]);
  std::erase_if(asks, [](const Ask& ask) { return ask.tensors.empty(); });
  return asks;
}

std::vector<Trainer::Ask> Trainer::lease(Time now, const workload::Run& run) {
  std::vector<Ask> refused;
  for (Ask& ask : asks_of(run)) {
    if (lease(now, ask, place_of(run)))
      held_.push_back(std::move(ask));
    else
      refused.push_back(std::move(ask));
  }
  return refused;
}

// In id order; at the first refusal what was taken is given back.
bool Trainer::lease(Time now, const Ask& ask, std::uint32_t place) {
  for (std::size_t i = 0; i < ask.tensors.size(); ++i) {
    const Handle handle = ask.tensors[i];
    const bool taken =
        shm::acquire(table_.word(handle.slot), handle.incarnation, ask.mode).outcome == shm::Outcome::kDone;
    if (taken && slots_[index(handle.slot)].place == place) continue;
    for (std::size_t j = 0; j < i + (taken ? 1 : 0); ++j)
      shm::release(table_.word(ask.tensors[j].slot), ask.tensors[j].incarnation, ask.mode);
    return false;
  }
  for (const Handle handle : ask.tensors) log_.push_back({handle.slot, ask.mode, now});
  return true;
}

bool Trainer::release() {
  bool rings = false;
  for (const Ask& ask : std::exchange(held_, {})) {
    for (const Handle handle : ask.tensors) {
      const shm::Step step = shm::release(table_.word(handle.slot), handle.incarnation, ask.mode);
      TERRACE_CHECK(step.outcome == shm::Outcome::kDone);
      rings |= step.word.wanted && !step.word.leased();
    }
  }
  return rings;
}

}  // namespace terrace::rehearsal
