// SPDX-License-Identifier: Apache-2.0
// One call of an operator on the test device that has no kernel of its own there: the CPU's kernel is put in the
// current stream, over the mirrors. Shape functions say before what it gives; where they cannot, it is waited for.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gpu/torch_device/mirrors.h"

namespace terrace::torch_device {

class Call {
 public:
  // The operator's arguments are the stack's last values.
  Call(const c10::OperatorHandle& op, const torch::jit::Stack& stack);
  // What it gives, in order: there, or to be there in the stream.
  std::vector<c10::IValue> run();

 private:
  c10::Device find_device() const;
  bool is_written(std::size_t argument) const;
  void take_arguments();
  void see_returns();
  bool ask_shapes();
  at::Tensor as_meta(const at::Tensor& tensor);
  void resize_outs();
  c10::IValue result(const c10::IValue& meta, bool& any_new);
  std::vector<c10::IValue> run_behind();
  std::vector<c10::IValue> run_now();

  c10::OperatorHandle op_;
  const c10::FunctionSchema& schema_;
  std::vector<c10::IValue> arguments_;
  c10::Device device_;
  c10::Stream stream_;
  Mirrors mirrors_;
  torch::jit::Stack cpu_;  // the arguments as the CPU's kernel has them: memory of the host by value, as it is now
  // Which argument each return is; none: it is new.
  std::vector<std::optional<std::size_t>> returned_;
  bool any_new_ = false;
  bool any_odd_ = false;  // a return that is no tensor
  bool any_out_ = false;
  torch::jit::Stack meta_;                                 // after ask_shapes(): what the operator gives
  std::unordered_map<const void*, at::Tensor> metas_;      // by tensor
  std::unordered_map<const void*, at::Tensor> originals_;  // by a meta tensor's storage
};

}  // namespace terrace::torch_device
