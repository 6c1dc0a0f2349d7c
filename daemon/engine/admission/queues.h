// SPDX-License-Identifier: Apache-2.0
// The admissions of each session, in order of arrival.
#pragma once

#include <cstdint>

#include "engine/admission/session.h"
#include "engine/links/links.h"
#include "engine/residency/wakes.h"
#include "engine/values/counts.h"
#include "engine/values/turn.h"

namespace terrace::engine {

class Queues {
 public:
  Queues(Turn& turn, Counts& counts, Links& links, Wakes& wakes)
      : turn_(turn), counts_(counts), links_(links), wakes_(wakes) {}

  void enlist(Session& session, Admission&& admission);
  Admission* find_admission(Session& session, std::uint64_t id);
  Admission& demand_of(Session& session, RequestId request);
  void note_late(Session& session, const Tensor& tensor);

 private:
  Turn& turn_;
  Counts& counts_;
  Links& links_;
  Wakes& wakes_;
  std::uint64_t next_admission_ = 1;
};

}  // namespace terrace::engine
