// SPDX-License-Identifier: Apache-2.0
// Which tensors have content as a workload goes on. Internal to workload.
#pragma once

#include <cstddef>
#include <vector>

#include "terrace/error.h"
#include "workload/workload.h"

namespace terrace::workload {

class Content {
 public:
  // A tensor that was declared.
  void declare(bool home) { has_.push_back(home); }
  // What `run` does to content. The error's message names a tensor that it reads or frees without content; its ids must
  // have been declared.
  Result<void> follow(const Run& run);
  bool has(TensorId id) const { return has_[id]; }

 private:
  std::vector<bool> has_;  // by TensorId
};

}  // namespace terrace::workload
