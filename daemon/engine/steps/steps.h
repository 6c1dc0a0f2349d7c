// SPDX-License-Identifier: Apache-2.0
// How far a session has come in what is foreseen of it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "engine/residency/registry.h"
#include "engine/residency/tiers.h"
#include "engine/residency/wakes.h"
#include "engine/steps/course.h"
#include "engine/values/counts.h"
#include "engine/values/options.h"
#include "engine/values/turn.h"

namespace terrace::engine {

class Steps {
 public:
  Steps(const Options& options, Turn& turn, Counts& counts, Registry& registry, Tiers& tiers, Wakes& wakes)
      : options_(options), turn_(turn), counts_(counts), registry_(registry), tiers_(tiers), wakes_(wakes) {}

  void observe(const Course& session, Slot slot, shm::Mode mode, Time at, Duration waited);
  void observe_forgotten(const Course& session, Slot slot);
  void observe_step(const Course& session, std::uint32_t kind);
  void observe_declared(Course& session, const DeclareStep& step);
  // What is foreseen of the step that is under way, instead of what was before; null: nothing.
  void take_plan(Course& session, std::shared_ptr<const foresight::Plan> plan);
  void step_over(Course& session);
  void pass_below(Course& session, Slot slot);
  void follow(Course& session, Slot slot);
  void tell_policies(Course& session);
  void plan_return(Course& session, Slot slot, Level level);
  void note_hint(Course& session, Slot slot, TierId tier);
  void note_lease(Course& session, Slot slot);

 private:
  void pass(Course& session, std::uint32_t use);
  std::optional<std::uint32_t> find_use(Foreseen& foreseen, Slot slot) const;
  static bool leaps(Foreseen& foreseen, std::uint32_t use);
  void pass_some(Course& session, std::uint32_t most);
  void lose_plan(Course& session);
  bool is_hinted(const Course& session, Slot slot, TierId tier) const;
  bool expect_first_uses(Course& session);
  void forget_expectations(Course& session);

  const Options& options_;
  Turn& turn_;
  Counts& counts_;
  Registry& registry_;
  Tiers& tiers_;
  Wakes& wakes_;
};

}  // namespace terrace::engine
