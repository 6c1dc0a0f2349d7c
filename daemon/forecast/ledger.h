// SPDX-License-Identifier: Apache-2.0
// What a rehearsal does with each class of tensors. Internal to forecast.
#pragma once

#include <array>
#include <vector>

#include "forecast/outlook.h"
#include "rehearsal/spectator.h"
#include "workload/workload.h"

namespace terrace::forecast {

class Ledger : public rehearsal::Spectator {
 public:
  explicit Ledger(const workload::Workload& workload);

  // Forgets what it saw: from here on a repetition is counted, and no time has passed.
  void begin();
  std::array<ClassOutlook, workload::kClassNames.size()> classes() const;

  void moving(const mover::Transfer& transfer, const rehearsal::Traffic& traffic) override;
  void ran(const workload::Run& run, Time now, const rehearsal::Trainer& trainer) override;

 private:
  const workload::Workload& workload_;
  std::vector<bool> has_content_;  // by tensor
  std::array<ClassOutlook, workload::kClassNames.size()> classes_{};
  double nanoseconds_ = 0;
  Time last_{};
};

}  // namespace terrace::forecast
