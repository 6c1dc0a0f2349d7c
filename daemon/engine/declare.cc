// SPDX-License-Identifier: Apache-2.0
// A client says what its steps are going to lease, before it leases anything: the learner hears it as if it had seen
// one.
#include <fmt/format.h>

#include <algorithm>

#include "engine/engine_impl.h"

namespace terrace::engine {
namespace {

constexpr Duration kDeclaredMax = std::chrono::hours(24);

}  // namespace

void EngineImpl::on(const Request& request, const DeclareStep& body) {
  const auto session = open_session(request.session);
  if (!session) return answer(request.id, std::unexpected(session.error()));
  if (const auto good = check_declared(**session, body); !good)
    return answer(request.id, std::unexpected(good.error()));
  observe_declared(**session, body);
  answer(request.id, ReplyBody{Done{}});
}

Result<void> EngineImpl::check_declared(Session& session, const DeclareStep& step) {
  if (step.kind >= session.declared.size())
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("step kind {}: give 0 (train), 1 (accumulate) or 2 (eval)", step.kind));
  if (session.is_share())
    return fail(ErrorCode::kFailedPrecondition,
                fmt::format("share '{}' has no steps of its own: declare them in an ordinary session", session.share));
  const Declared& so_far = session.declared[step.kind];
  if (step.position > so_far.sets)
    return fail(ErrorCode::kFailedPrecondition,
                fmt::format("set {} of a step whose first {} are declared: declare them in order, from 0",
                            step.position, so_far.sets));
  if (step.sets.empty()) return fail(ErrorCode::kInvalidArgument, "a step of no sets is declared: name at least one");
  Duration compute = step.position == 0 ? Duration::zero() : so_far.compute;
  for (const DeclareStep::Set& set : step.sets) {
    if (set.tensors.empty())
      return fail(ErrorCode::kInvalidArgument, "a set of no tensors is declared: name at least one");
    compute += set.compute;
    if (compute > kDeclaredMax)
      return fail(ErrorCode::kInvalidArgument, "a step that computes for more than a day is declared: give seconds");
    if (const auto tier = tier_of_place(set.place, false); !tier) return std::unexpected(tier.error());
    if (const auto slots = find_all(session, set.tensors); !slots) return std::unexpected(slots.error());
  }
  return {};
}

void EngineImpl::observe_declared(Session& session, const DeclareStep& step) {
  Declared& declared = session.declared[step.kind];
  if (step.position == 0) declared = {};
  for (std::size_t at = declared.sets - step.position; at < step.sets.size(); ++at) {
    const DeclareStep::Set& set = step.sets[at];
    // Else it would be taken for one set with the next.
    const Duration compute = std::max(set.compute, Duration(foresight::kOneSetNs));
    for (const Handle& handle : set.tensors) {
      if (!options_.observe) break;
      output_.observations.push_back({.session = session.id,
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
