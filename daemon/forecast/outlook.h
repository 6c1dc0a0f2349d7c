// SPDX-License-Identifier: Apache-2.0
// What a repetition of a workload costs one rank on a node: as its steps went on the engine, or by the bound alone.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string_view>

#include "rehearsal/links.h"
#include "rehearsal/policies.h"
#include "terrace/error.h"
#include "workload/bound.h"
#include "workload/node.h"
#include "workload/workload.h"

namespace terrace::forecast {

// Where a figure comes from.
enum class Source : std::uint8_t {
  kRehearsal,  // the daemon's engine in virtual time
  kBound,      // what no schedule beats (workload/bound.h): a step at least so long, bytes at least so many
};
inline constexpr std::array<std::string_view, 2> kSourceNames = {"rehearsal", "bound"};
constexpr std::string_view name(Source source) { return kSourceNames[static_cast<std::size_t>(source)]; }

// Of the tensors of one class.
struct ClassOutlook {
  std::uint64_t held_bytes = 0;  // that have content from step to step
  std::uint64_t born_bytes = 0;  // of the others, all together, whether or not they are there at once
  rehearsal::Traffic traffic;
  std::array<double, 3> mean_bytes{};  // of content over the time, by where its fastest copy is: HBM, host, block
  bool operator==(const ClassOutlook&) const = default;
};

// Of a repetition, on average.
struct Outlook {
  Source source{};
  Duration step{};
  Duration compute{};
  rehearsal::Traffic traffic;
  std::array<ClassOutlook, workload::kClassNames.size()> classes{};  // by Class; of a bound all zero
};

// What is at work, and how long of a repetition.
struct Busy {
  workload::Limit what{};
  Duration time{};
};
// Compute, and each direction of each link.
std::array<Busy, 5> busy(const Outlook& outlook, const workload::Node& node);
// The one that is longest at work; of several the first.
Busy busiest(const Outlook& outlook, const workload::Node& node);
// What limits the step: what the bound is of, where nothing is at work for as long as the bound is, else the busiest.
workload::Limit limit(const Outlook& outlook, const workload::Bound& bound, const workload::Node& node);

struct RehearseOptions {
  rehearsal::PolicyKind policy = rehearsal::PolicyKind::kNextUse;
  std::uint64_t repetitions = 5;                                            // at least 1
  std::function<void(std::uint64_t step, std::uint64_t steps)> progress{};  // before each step, from 1
};

// The mean of the repetitions from the third on (one fills memory, one is learned from), or of the last where there are
// fewer. An error names the run that cannot be done on this node, or the tier that cannot hold the workload.
Result<Outlook> rehearse(const workload::Workload& workload, const workload::Node& node,
                         const RehearseOptions& options = {});
// What `bound` says of it. By a workload, errors as lower_bound().
Outlook bounded(const workload::Bound& bound);
Result<Outlook> bounded(const workload::Workload& workload, const workload::Node& node);

// Uses of tensors in one repetition: what the time of a rehearsal goes with.
std::uint64_t uses_of(const workload::Workload& workload);

}  // namespace terrace::forecast
