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

Trainer::Set Trainer::set_of(const workload::Run& run) const {
  Set set;
  for (const workload::TensorId tensor : workload::leased(run)) {
    set.tensors.push_back(handles_[tensor]);
    set.modes.push_back(mode_of(run, tensor));
  }
  return set;
}

// At the first refusal what was taken is given back.
bool Trainer::lease(Time now, const Set& set, std::uint32_t place) {
  for (std::size_t i = 0; i < set.tensors.size(); ++i) {
    const Handle handle = set.tensors[i];
    const bool taken =
        shm::acquire(table_.word(handle.slot), handle.incarnation, set.modes[i]).outcome == shm::Outcome::kDone;
    if (taken && slots_[index(handle.slot)].place == place) continue;
    for (std::size_t j = 0; j < i + (taken ? 1 : 0); ++j)
      shm::release(table_.word(set.tensors[j].slot), set.tensors[j].incarnation, set.modes[j]);
    return false;
  }
  for (std::size_t i = 0; i < set.tensors.size(); ++i) log_.push_back({set.tensors[i].slot, set.modes[i], now});
  return true;
}

bool Trainer::release() {
  bool rings = false;
  const Set ended = std::exchange(held_, {});
  for (std::size_t i = 0; i < ended.tensors.size(); ++i) {
    const shm::Step step =
        shm::release(table_.word(ended.tensors[i].slot), ended.tensors[i].incarnation, ended.modes[i]);
    TERRACE_CHECK(step.outcome == shm::Outcome::kDone);
    rings |= step.word.wanted && !step.word.leased();
  }
  return rings;
}

}  // namespace terrace::rehearsal
