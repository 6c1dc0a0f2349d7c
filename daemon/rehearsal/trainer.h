// SPDX-License-Identifier: Apache-2.0
// A trainer as the client library makes one: it leases in its table what is there, asks the engine for what is not, and
// writes an access log. It knows nothing of what is to come but the run that it is about to do.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/time.h"
#include "engine/engine.h"
#include "engine/values/lease_table.h"
#include "shm/layout.h"
#include "workload/workload.h"

namespace terrace::rehearsal {

// As the engine names it.
std::uint32_t place_of(const workload::Run& run);
// How `run` leases a tensor of its set.
shm::Mode mode_of(const workload::Run& run, workload::TensorId tensor);

class Trainer {
 public:
  // What a run leases, all or nothing.
  struct Set {
    std::vector<Handle> tensors;
    std::vector<shm::Mode> modes;  // of each
  };

  explicit Trainer(std::size_t tensors) : slots_(tensors), table_(slots_) {}

  engine::LeaseTable table() { return table_; }
  void created(const std::vector<Handle>& handles) { handles_.insert(handles_.end(), handles.begin(), handles.end()); }
  const std::vector<Handle>& handles() const { return handles_; }

  // Where its copy that is leased lies, as the engine names it; nothing: in no place that trainers map.
  std::optional<std::uint32_t> place(workload::TensorId tensor) const;

  Set set_of(const workload::Run& run) const;
  // Leases the set, if the table allows it; otherwise the engine is to be asked.
  bool lease(Time now, const Set& set, std::uint32_t place);
  // It is leased.
  void hold(Set set) { held_ = std::move(set); }
  // Ends all leases. True: somebody waits for one, and the doorbell is to be rung.
  bool release();
  // Entries since the last call.
  std::vector<engine::Access> take_log() { return std::exchange(log_, {}); }
  bool has_log() const { return !log_.empty(); }

 private:
  std::vector<shm::TableSlot> slots_;
  engine::LeaseTable table_;
  std::vector<Handle> handles_;  // by tensor
  Set held_;
  std::vector<engine::Access> log_;
};

}  // namespace terrace::rehearsal
