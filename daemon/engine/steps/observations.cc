// SPDX-License-Identifier: Apache-2.0
// What sessions do, and say that they are going to do, is put down for the learner.
#include "engine/steps/steps.h"

#include <algorithm>

#include "foresight/template.h"

#include "engine/links/scheduler.h"

namespace terrace::engine {

void Steps::observe(const Course& session, Slot slot, shm::Mode mode, Time at, Duration waited) {
  if (!options_.observe || session.is_share() || session.step == 0) return;
  const Tensor& tensor = session.at(slot);
  const TierId tier =
      tiers_.tier_index(tensor, tensor.published == Level::kNone ? tiers_.home_level : tensor.published);
  turn_.output.observations.push_back({.session = session.id,
                                       .kind = foresight::Observation::Kind::kUsed,
                                       .slot = slot,
                                       .place = tiers_[tier].place,
                                       .mode = mode,
                                       .bytes = tensor.extent_bytes(),
                                       .at = at,
                                       .waited = waited});
}

void Steps::observe_forgotten(const Course& session, Slot slot) {
  if (!options_.observe || session.is_share() || session.step == 0) return;
  turn_.output.observations.push_back(
      {.session = session.id, .kind = foresight::Observation::Kind::kForgotten, .slot = slot, .at = turn_.now});
}

void Steps::observe_step(const Course& session, std::uint32_t kind) {
  if (!options_.observe || session.is_share()) return;
  const auto siblings = std::ranges::count_if(registry_.all, [&](const auto& other) {
    return other.second->tenant == session.tenant && !other.second->is_share();
  });
  turn_.output.observations.push_back(
      {.session = session.id,
       .kind = foresight::Observation::Kind::kStep,
       .step_kind = kind,
       .weight = weight_of(options_.weights, session.tenant) / static_cast<double>(siblings),
       .at = turn_.now});
}

void Steps::observe_declared(Course& session, const DeclareStep& step) {
  Declared& declared = session.declared[step.kind];
  if (step.position == 0) declared = {};
  for (std::size_t at = declared.sets - step.position; at < step.sets.size(); ++at) {
    const DeclareStep::Set& set = step.sets[at];
    // Else it would be taken for one set with the next.
    const Duration compute = std::max(set.compute, Duration(foresight::kOneSetNs));
    for (const Handle& handle : set.tensors) {
      if (!options_.observe) break;
      turn_.output.observations.push_back({.session = session.id,
                                           .kind = foresight::Observation::Kind::kDeclared,
                                           .slot = handle.slot,
                                           .place = set.place,
                                           .mode = set.mode,
                                           .step_kind = step.kind,
                                           .first = declared.sets == 0 && handle == set.tensors.front(),
                                           .bytes = session.at(handle.slot).extent_bytes(),
                                           .at = Time{} + declared.compute,
                                           .waited = compute});
    }
    ++declared.sets;
    declared.compute += compute;
  }
}

}  // namespace terrace::engine
