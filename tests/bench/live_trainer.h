// SPDX-License-Identifier: Apache-2.0
// A workload's steps on a live daemon, with real bytes: what rehearsal::Rehearsal does in virtual time.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "terrace/client.h"
#include "workload/workload.h"

namespace terrace::bench {

// How much of its content a run writes and checks. Samples cost next to nothing, as a GPU's work costs the CPU nothing.
enum class Touch : std::uint8_t { kSamples, kEveryByte };

// One step, from its mark to the end of its last run.
struct LiveStep {
  std::uint64_t number = 0;  // from 1
  workload::StepKind kind{};
  std::chrono::nanoseconds makespan{};
  std::chrono::nanoseconds compute{};  // that passed while leases were held
  std::uint64_t tensors_checked = 0;   // whose content was as it was written last
};

// Each run leases its set; checks what it reads and writes what it writes; sleeps for what is left
// of its compute time; releases, and frees. Time that a run took too long is taken from the next ones', so that a step
// computes for as long as the workload says wherever that is possible.
class LiveTrainer {
 public:
  // Creates the tensors, and writes those that have content before the first step. Client and workload outlive it.
  static Result<LiveTrainer> make(Client& client, const workload::Workload& workload, Touch touch);

  // The next one; after the workload's last, the first again. kDataLoss names what came back wrong.
  Result<LiveStep> step();

 private:
  LiveTrainer(Client& client, const workload::Workload& workload, Touch touch)
      : client_(&client), workload_(&workload), touch_(touch) {}

  Result<void> run(const workload::Run& run, LiveStep& step);
  Result<std::vector<Lease>> lease(const workload::Run& run);
  Result<void> work_on(Lease& lease, workload::TensorId tensor, LiveStep& step);
  Result<void> free(std::span<const workload::TensorId> ids);

  Client* client_;
  const workload::Workload* workload_;
  Touch touch_;
  std::vector<Tensor> tensors_;
  std::vector<std::uint64_t> versions_;  // of each one's content
  std::uint64_t steps_ = 0;              // begun
  std::chrono::nanoseconds late_{};      // how much longer than it should it has computed
};

}  // namespace terrace::bench
