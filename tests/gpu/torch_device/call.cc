// SPDX-License-Identifier: Apache-2.0
#include "gpu/torch_device/call.h"

#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/resize_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/Exceptions.h>

#include <memory>
#include <string>

#include "gpu/torch_device/backend.h"

namespace terrace::torch_device {
namespace {

using torch::jit::Stack;

bool is_tensors(const c10::Argument& argument) {
  const c10::TypeKind kind = argument.type()->kind();
  return kind == c10::TypeKind::TensorType || kind == c10::TypeKind::ListType;
}

// Copies what a kernel gave to where it belongs.
void lay(const c10::IValue& target, const c10::IValue& source) {
  if (target.isTensor()) {
    if (!target.toTensor().defined() || !source.toTensor().defined()) return;
    TORCH_CHECK(target.toTensor().sizes() == source.toTensor().sizes(), "the shape function foretold ",
                target.toTensor().sizes(), ", and the kernel gave ", source.toTensor().sizes());
    target.toTensor().copy_(source.toTensor());
    return;
  }
  const auto targets = target.toTensorVector();
  const auto sources = source.toTensorVector();
  for (std::size_t each = 0; each < targets.size(); ++each) targets[each].copy_(sources[each]);
}

at::Tensor by_value(const at::Tensor& host) {
  at::Tensor copy = host.detach().clone();
  if (host.unsafeGetTensorImpl()->is_wrapped_number()) copy.unsafeGetTensorImpl()->set_wrapped_number(true);
  return copy;
}

}  // namespace

Call::Call(const c10::OperatorHandle& op, const Stack& stack)
    : op_(op),
      schema_(op.schema()),
      arguments_(stack.end() - static_cast<std::ptrdiff_t>(schema_.arguments().size()), stack.end()),
      device_(find_device()),
      stream_(current_stream(device_.index())) {}

std::vector<c10::IValue> Call::run() {
  const c10::DeviceGuard guard(device_);
  take_arguments();
  see_returns();
  const bool is_asked = !any_odd_ && (any_new_ || any_out_);
  return (is_asked && ask_shapes()) || (!any_new_ && !any_out_) ? run_behind() : run_now();
}

c10::Device Call::find_device() const {
  std::optional<c10::Device> found;
  for (const c10::IValue& each : arguments_)
    with_tensors(each, [&](const at::Tensor& tensor) {
      if (!found && tensor.defined() && tensor.is_privateuseone()) found = tensor.device();
      return tensor;
    });
  for (const c10::IValue& each : arguments_)
    if (!found && each.isDevice() && each.toDevice().is_privateuseone()) found = each.toDevice();
  TORCH_CHECK(found, schema_.operator_name(), " has no tensor of the test device");
  return found->has_index() ? *found : c10::Device(kKind, static_cast<c10::DeviceIndex>(current_device()));
}

bool Call::is_written(std::size_t argument) const {
  const c10::AliasInfo* const alias = schema_.arguments()[argument].alias_info();
  return alias != nullptr && alias->isWrite();
}

void Call::take_arguments() {
  for (std::size_t number = 0; number < arguments_.size(); ++number) {
    const c10::IValue& each = arguments_[number];
    if (each.isDevice())
      cpu_.emplace_back(c10::Device(c10::kCPU));
    else if (each.isGenerator() && each.toGenerator().device().type() == kKind)
      cpu_.emplace_back(generator_for_kernel(each.toGenerator()));
    else if (each.isNone() && schema_.arguments()[number].name() == "generator")
      cpu_.emplace_back(generator_for_kernel(default_generator(device_.index())));
    else
      cpu_.push_back(with_tensors(each, [&](const at::Tensor& tensor) {
        return tensor.defined() && tensor.is_cpu() ? by_value(tensor) : mirrors_.of(tensor, is_written(number));
      }));
  }
}

void Call::see_returns() {
  for (const c10::Argument& each : schema_.returns()) {
    std::optional<std::size_t> which;
    const c10::AliasInfo* const alias = each.alias_info();
    if (alias != nullptr && alias->isWrite())
      for (std::size_t number = 0; number < arguments_.size(); ++number)
        if (is_written(number) && schema_.arguments()[number].alias_info()->beforeSets() == alias->beforeSets())
          which = number;
    any_new_ = any_new_ || !which;
    any_odd_ = any_odd_ || (!which && !is_tensors(each));
    returned_.push_back(which);
  }
  for (const c10::Argument& each : schema_.arguments()) any_out_ = any_out_ || each.is_out();
}

at::Tensor Call::as_meta(const at::Tensor& tensor) {
  if (!tensor.defined() || (tensor.is_cpu() && tensor.dim() == 0)) return tensor;
  const auto [found, fresh] = metas_.try_emplace(tensor.unsafeGetTensorImpl());
  if (fresh) {
    found->second = at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type());
    originals_.emplace(found->second.storage().unsafeGetStorageImpl(), tensor);
  }
  return found->second;
}

bool Call::ask_shapes() {
  for (const c10::IValue& each : arguments_) {
    if (each.isDevice())
      meta_.emplace_back(c10::Device(c10::kMeta));
    else if (each.isGenerator())
      meta_.emplace_back();
    else
      meta_.push_back(with_tensors(each, [this](const at::Tensor& tensor) { return as_meta(tensor); }));
  }
  try {
    below_autograd([this] { op_.callBoxed(meta_); });
    return true;
  } catch (python_error& error) {
    error.persist();
    const pybind11::gil_scoped_acquire gil;
    PyErr_Clear();
  } catch (const std::exception&) {  // it has no shape function, or one that looks at what is in a tensor
  }
  return false;
}

// An out= of another shape takes the one that was foretold.
void Call::resize_outs() {
  for (std::size_t number = 0; number < arguments_.size(); ++number) {
    if (!schema_.arguments()[number].is_out() || !arguments_[number].isTensor()) continue;
    const at::Tensor out = arguments_[number].toTensor();
    const auto found = metas_.find(out.unsafeGetTensorImpl());
    if (found == metas_.end() || found->second.sizes() == out.sizes()) continue;
    at::native::resize_(out, found->second.sizes());
    Mirrors anew;
    cpu_[number] = anew.of(out, true);
  }
}

c10::IValue Call::result(const c10::IValue& meta, bool& any_new) {
  return with_tensors(meta, [&](const at::Tensor& each) {
    if (!each.defined()) return each;
    const auto found = originals_.find(each.storage().unsafeGetStorageImpl());
    if (found == originals_.end()) {
      any_new = true;
      return empty_like_meta(each, device_);
    }
    const at::Tensor& viewed = found->second;
    at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(viewed.storage()),
                                                               viewed.key_set(), each.dtype());
    const auto before = viewed.storage_offset() * static_cast<std::int64_t>(viewed.itemsize() / each.itemsize());
    view.unsafeGetTensorImpl()->set_sizes_and_strides(each.sizes(), each.strides(), each.storage_offset() + before);
    return view;
  });
}

std::vector<c10::IValue> Call::run_behind() {
  if (any_out_) resize_outs();
  std::vector<c10::IValue> results;
  std::vector<std::pair<std::size_t, c10::IValue>> targets;
  for (std::size_t number = 0; number < returned_.size(); ++number) {
    if (returned_[number]) {
      results.push_back(arguments_[*returned_[number]]);
      continue;
    }
    bool any_new = false;
    results.push_back(result(meta_[number], any_new));
    if (any_new)
      targets.emplace_back(
          number, with_tensors(results.back(), [this](const at::Tensor& each) { return mirrors_.of(each, true); }));
  }
  if (targets.empty() && any_new_) return results;  // views alone
  launch(
      stream_, c10::toString(op_.operator_name()),
      [op = op_, cpu = std::move(cpu_), targets = std::move(targets)]() mutable {
        below_autograd([&] {
          op.callBoxed(cpu);
          for (const auto& [number, target] : targets) lay(target, cpu[number]);
        });
      },
      mirrors_.touched());
  return results;
}

std::vector<c10::IValue> Call::run_now() {
  counters().synchronous.fetch_add(1);
  const auto shared = std::make_shared<Stack>(std::move(cpu_));
  launch(
      stream_, c10::toString(op_.operator_name()),
      [op = op_, shared] { below_autograd([&] { op.callBoxed(*shared); }); }, mirrors_.touched());
  synchronize(stream_);
  std::vector<c10::IValue> results;
  for (std::size_t number = 0; number < returned_.size(); ++number) {
    if (returned_[number]) {
      results.push_back(arguments_[*returned_[number]]);
      continue;
    }
    results.push_back(with_tensors((*shared)[number], [this](const at::Tensor& host) {
      if (!host.defined()) return host;
      at::Tensor made = empty_like_meta(host, device_);
      launch(stream_, "result", [target = mirrors_.of(made, true), host]() mutable { target.copy_(host); });
      return made;
    }));
  }
  return results;
}

}  // namespace terrace::torch_device
