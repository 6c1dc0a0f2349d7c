// SPDX-License-Identifier: Apache-2.0
#include "forecast/ledger.h"

#include "base/check.h"
#include "shm/layout.h"

namespace terrace::forecast {
namespace {

constexpr std::size_t kHbm = 0;
constexpr std::size_t kHost = 1;
constexpr std::size_t kBlock = 2;

std::size_t tier_of(std::optional<std::uint32_t> place) {
  if (!place) return kBlock;
  return *place == shm::kPlaceHost ? kHost : kHbm;
}

}  // namespace

Ledger::Ledger(const workload::Workload& workload) : workload_(workload) {
  for (const workload::Tensor& tensor : workload.tensors) has_content_.push_back(tensor.home);
}

void Ledger::begin() {
  classes_ = {};
  nanoseconds_ = 0;
}

std::array<ClassOutlook, workload::kClassNames.size()> Ledger::classes() const {
  auto classes = classes_;
  for (const workload::Tensor& tensor : workload_.tensors) {
    ClassOutlook& of_class = classes[static_cast<std::size_t>(tensor.tensor_class)];
    (tensor.home ? of_class.held_bytes : of_class.born_bytes) += tensor.bytes;
  }
  for (ClassOutlook& of_class : classes)
    for (double& mean : of_class.mean_bytes) mean = nanoseconds_ > 0 ? mean / nanoseconds_ : 0;
  return classes;
}

void Ledger::moving(const mover::Transfer& transfer, const rehearsal::Traffic& traffic) {
  TERRACE_CHECK(transfer.tensor >= 1 && transfer.tensor <= workload_.tensors.size());
  const workload::Tensor& tensor = workload_.tensors[transfer.tensor - 1];
  classes_[static_cast<std::size_t>(tensor.tensor_class)].traffic += traffic;
}

// What lies where is taken as it is at the end of a run for all of the time since the one before.
void Ledger::ran(const workload::Run& run, Time now, const rehearsal::Trainer& trainer) {
  const auto passed = static_cast<double>((now - last_).count());
  const bool counts = last_ != Time{};
  last_ = now;
  for (const workload::TensorId tensor : run.write) has_content_[tensor] = true;
  for (const workload::TensorId tensor : run.free) has_content_[tensor] = false;
  if (!counts) return;
  nanoseconds_ += passed;
  for (std::size_t id = 0; id < has_content_.size(); ++id) {
    if (!has_content_[id]) continue;
    const workload::Tensor& tensor = workload_.tensors[id];
    classes_[static_cast<std::size_t>(tensor.tensor_class)]
        .mean_bytes[tier_of(trainer.place(static_cast<workload::TensorId>(id)))] +=
        static_cast<double>(tensor.bytes) * passed;
  }
}

}  // namespace terrace::forecast
