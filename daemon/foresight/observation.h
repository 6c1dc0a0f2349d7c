// SPDX-License-Identifier: Apache-2.0
// What the engine saw a session do: the input of the learner, as values. Nothing here is verified by anybody: a client
// that writes nonsense into its access log gets plans of nonsense, for its own session alone.
#pragma once

#include <cstdint>

#include "base/ids.h"
#include "base/time.h"
#include "shm/word.h"

namespace terrace::foresight {

struct Observation {
  enum class Kind : std::uint8_t {
    kUsed,       // the tensor was leased at `place`
    kForgotten,  // its content went, or the tensor itself
    kStep,       // a step begins: what follows belongs to it
    kDeclared,   // steps of the kind are going to lease the tensor there; nothing was leased
  };

  SessionId session{};
  Kind kind{};
  Slot slot{};
  std::uint32_t place = 0;
  shm::Mode mode = shm::Mode::kRead;
  std::uint32_t step_kind = 0;  // of the step that begins, or that is declared: 0 train, 1 accumulate, 2 eval
  bool first = false;           // kDeclared: what was declared before does not count
  double weight = 1;            // kStep: the session's, beside the others' that use the machine
  std::uint64_t bytes = 0;      // of the tensor's extent
  Time at{};                    // kDeclared: from the beginning of the step, of compute
  Duration waited{};            // until then, for this lease; kDeclared: the compute with it
};

}  // namespace terrace::foresight
