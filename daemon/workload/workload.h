// SPDX-License-Identifier: Apache-2.0
// A workload as plain values: what one rank computes in its training steps, which tensors each piece of it needs, and
// for how long. reader.h and writer.h turn it into JSON Lines and back; docs/reference/workloads.md describes the file.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/time.h"

namespace terrace::workload {

using TensorId = std::uint32_t;  // index into Workload::tensors

enum class Class : std::uint8_t { kParam, kGrad, kOptim, kAct, kData };
enum class Place : std::uint8_t { kHbm, kHost };
enum class StepKind : std::uint8_t { kTrain, kAccum, kEval };

// As in the file: enumerator i is called kNames[i].
inline constexpr std::array<std::string_view, 5> kClassNames = {"param", "grad", "optim", "act", "data"};
inline constexpr std::array<std::string_view, 2> kPlaceNames = {"hbm", "host"};
inline constexpr std::array<std::string_view, 3> kStepKindNames = {"train", "accum", "eval"};

constexpr std::string_view name(Class tensor_class) { return kClassNames[static_cast<std::size_t>(tensor_class)]; }
constexpr std::string_view name(Place place) { return kPlaceNames[static_cast<std::size_t>(place)]; }
constexpr std::string_view name(StepKind kind) { return kStepKindNames[static_cast<std::size_t>(kind)]; }

struct Tensor {
  std::uint64_t bytes = 0;
  Class tensor_class = Class::kParam;
  bool home = false;  // it has content before the first step; else it is born at its first write
  std::string key{};  // what a client calls it; may be empty
  bool operator==(const Tensor&) const = default;
};

// One piece of compute. Every tensor of `read` and `write` is leased in `place` for the whole of it; those of `write`
// are dirty afterwards, and what is written and not read is overwritten: its old bytes are not needed. Those of `free`
// are dead afterwards and dropped without a write-back, until a later run writes them. No list holds an id twice.
struct Run {
  std::string name;
  Duration compute{};
  Place place = Place::kHbm;
  std::vector<TensorId> read;
  std::vector<TensorId> write;
  std::vector<TensorId> free;
  bool operator==(const Run&) const = default;
};

struct Step {
  StepKind kind = StepKind::kTrain;
  std::size_t end = 0;  // its runs are those before this index and from the end of the step before it
  bool operator==(const Step&) const = default;
};

// The steps in order; they are repeated from the first run.
struct Workload {
  std::string name;
  std::string source;  // where it comes from
  std::vector<Tensor> tensors;
  std::vector<Run> runs;
  std::vector<Step> steps;  // at least one, none without a run; the last one's end is the number of runs
  bool operator==(const Workload&) const = default;

  // The runs of step `step`, which must be there.
  std::span<const Run> runs_of(std::size_t step) const {
    const std::size_t begin = step == 0 ? 0 : steps[step - 1].end;
    return std::span(runs).subspan(begin, steps[step].end - begin);
  }
};

// The compute time of the runs together.
Duration compute_time(std::span<const Run> runs);

// The ids of `read` and `write` together, each once, ascending.
std::vector<TensorId> leased(const Run& run);
// What `run` leases, in bytes.
std::uint64_t leased_bytes(const Workload& workload, const Run& run);

}  // namespace terrace::workload
