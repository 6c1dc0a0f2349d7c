// SPDX-License-Identifier: Apache-2.0
#include "workload/perturb.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/random.h"
#include "workload/content.h"

namespace terrace::workload {
namespace {

constexpr int kDrawsMax = 64;

class Perturber {
 public:
  Perturber(const Workload& workload, const Node& node, const Perturbation& perturbation)
      : workload_(workload), node_(node), share_(perturbation.share), random_(perturbation.seed) {
    for (const Tensor& tensor : workload.tensors) content_.declare(tensor.home);
  }

  Run perturbed(const Run& run) {
    Run changed = run;
    for (const TensorId id : leased(run))
      if (random_.part() < share_) change_access(id, changed);
    TERRACE_CHECK(content_.follow(changed).has_value());
    return changed;
  }

 private:
  enum class Change : std::uint8_t { kReplace, kInsert, kDrop };

  void change_access(TensorId id, Run& run) {
    const Change change = content_.has(id) ? static_cast<Change>(random_.below(3)) : Change::kInsert;
    if (change != Change::kDrop) {
      const auto other = draw(run);
      if (!other) return;
      run.read.push_back(*other);
    }
    if (change == Change::kInsert) return;
    std::erase(run.read, id);
    std::erase(run.write, id);
  }

  std::optional<TensorId> draw(const Run& run) {
    const std::vector<TensorId> taken = leased(run);
    const std::uint64_t bytes = leased_bytes(workload_, run);
    const std::uint64_t bytes_max = node_.capacity_bytes(run.place) / 2;
    for (int draws = 0; draws < kDrawsMax; ++draws) {
      const auto id = static_cast<TensorId>(random_.below(workload_.tensors.size()));
      if (content_.has(id) && !std::ranges::binary_search(taken, id) &&
          bytes + workload_.tensors[id].bytes <= bytes_max)
        return id;
    }
    return std::nullopt;
  }

  const Workload& workload_;
  const Node& node_;
  double share_;
  Random random_;
  Content content_;
};

}  // namespace

Workload perturbed(const Workload& workload, const Node& node, const Perturbation& perturbation) {
  Perturber perturber(workload, node, perturbation);
  Workload changed{.name = workload.name,
                   .source = fmt::format("{}, {} of its accesses perturbed by seed {}", workload.source,
                                         perturbation.share, perturbation.seed),
                   .tensors = workload.tensors,
                   .runs = {},
                   .steps = {}};
  for (std::uint64_t repetition = 0; repetition < perturbation.repetitions; ++repetition) {
    const std::size_t begin = changed.runs.size();
    for (const Run& run : workload.runs) changed.runs.push_back(perturber.perturbed(run));
    for (const Step& step : workload.steps) changed.steps.push_back({step.kind, begin + step.end});
  }
  return changed;
}

}  // namespace terrace::workload
