// SPDX-License-Identifier: Apache-2.0
// What the test device has of its own: memory and views, copies, and what PyTorch asks of every backend outside of it
// by another name than of the CPU. Every other operator is a Call.
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <set>

#include "gpu/torch_device/call.h"
#include "gpu/torch_device/copies.h"
#include "gpu/torch_device/memory.h"

namespace terrace::torch_device {
namespace {

using c10::IntArrayRef;
using MaybeTensor = std::optional<at::Tensor>;

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

void call(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  std::vector<c10::IValue> results = Call(op, *stack).run();
  torch::jit::drop(*stack, op.schema().arguments().size());
  for (c10::IValue& each : results) stack->push_back(std::move(each));
}

c10::Device with_index(std::optional<c10::Device> device) {
  return device && device->has_index() ? *device : c10::Device(kKind, static_cast<c10::DeviceIndex>(current_device()));
}

void check_not_pinned(std::optional<bool> pinned) {
  TORCH_CHECK(!pinned.value_or(false), "only dense CPU tensors can be pinned");
}

at::Tensor empty(IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> /*layout*/,
                 std::optional<c10::Device> device, std::optional<bool> pinned,
                 std::optional<c10::MemoryFormat> format) {
  check_not_pinned(pinned);
  const c10::DeviceGuard guard(with_index(device));
  return at::detail::empty_generic(size, &device_memory(), kKeys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(IntArrayRef size, IntArrayRef stride, std::optional<c10::ScalarType> dtype,
                         std::optional<c10::Layout> /*layout*/, std::optional<c10::Device> device,
                         std::optional<bool> pinned) {
  check_not_pinned(pinned);
  const c10::DeviceGuard guard(with_index(device));
  return at::detail::empty_strided_generic(size, stride, &device_memory(), kKeys, c10::dtype_or_default(dtype));
}

at::Tensor as_strided(const at::Tensor& self, IntArrayRef size, IntArrayRef stride,
                      std::optional<std::int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}

const at::Tensor& resize(const at::Tensor& self, IntArrayRef size, std::optional<c10::MemoryFormat> format) {
  const c10::DeviceGuard guard(self.device());
  return at::native::resize_(self, size, format);
}

at::Tensor& set_storage_at(at::Tensor& self, at::Storage source, std::int64_t offset, IntArrayRef size,
                           IntArrayRef stride) {
  return at::native::set_storage_cpu_(self, std::move(source), offset, size, stride);
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source) { return at::native::set_(self, std::move(source)); }

at::Tensor& set_nothing(at::Tensor& self) {
  const c10::DeviceGuard guard(self.device());
  at::Storage none(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), 0,
                                                         device_memory().allocate(0), &device_memory(), true));
  return set_storage_at(self, std::move(none), 0, {0}, {});
}

at::Tensor copy_and_resize(const at::Tensor& from, const at::Tensor& to) {
  at::native::resize_(to, from.sizes());
  return copy_from(from, to, false);
}

c10::Scalar local_scalar(const at::Tensor& self) {
  const at::Tensor host = at::empty({}, self.options().device(c10::kCPU));
  copy_from(self.detach().reshape({}), host, false);
  return at::native::_local_scalar_dense_cpu(host);
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  device_memory().recordStream(self.storage().data_ptr(), stream);
}

std::tuple<at::Tensor, at::Tensor> dropout(const at::Tensor& input, double share, std::optional<bool> train) {
  const auto of_bool = input.options().dtype(at::kBool);
  if (!train.value_or(true)) return {input.clone(), at::ones_like(input, of_bool)};
  const at::Tensor kept = at::empty_like(input, of_bool).bernoulli_(1 - share);
  return {input * kept * (share == 1 ? 0. : 1 / (1 - share)), kept};
}

// Where convolutions go: with the sizes by value.
struct Sizes {
  std::vector<std::int64_t> stride, padding, dilation, extra;
  bool transposed = false;
  std::int64_t groups = 1;
};

using Tensors = std::vector<at::Tensor>;
void launch_into(const Tensors& made, const c10::Stream& stream, Mirrors& mirrors, std::function<Tensors()> kernel) {
  Tensors targets;
  for (const at::Tensor& each : made) targets.push_back(mirrors.of(each, true));
  launch(
      stream, "convolution",
      [targets, kernel = std::move(kernel)] {
        below_autograd([&] {
          const Tensors given = kernel();
          for (std::size_t each = 0; each < given.size(); ++each)
            if (targets[each].defined()) targets[each].copy_(given[each]);
        });
      },
      mirrors.touched());
}

at::Tensor meta(const at::Tensor& tensor) { return tensor.to(at::kMeta); }

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight, const MaybeTensor& bias, IntArrayRef stride,
                       IntArrayRef padding, IntArrayRef dilation, bool transposed, IntArrayRef extra,
                       std::int64_t groups) {
  const MaybeTensor no_bias;
  const at::Tensor made =
      empty_like_meta(at::convolution(meta(input), meta(weight), bias ? MaybeTensor(meta(*bias)) : no_bias, stride,
                                      padding, dilation, transposed, extra, groups),
                      input.device());
  Mirrors mirrors;
  const Sizes sizes{stride.vec(), padding.vec(), dilation.vec(), extra.vec(), transposed, groups};
  launch_into({made}, current_stream(input.device().index()), mirrors,
              [sizes, input = mirrors.of(input), weight = mirrors.of(weight),
               bias = bias ? MaybeTensor(mirrors.of(*bias)) : no_bias] {
                return Tensors{at::convolution(input, weight, bias, sizes.stride, sizes.padding, sizes.dilation,
                                               sizes.transposed, sizes.extra, sizes.groups)};
              });
  return made;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(const at::Tensor& gradient, const at::Tensor& input,
                                                                    const at::Tensor& weight, IntArrayRef stride,
                                                                    IntArrayRef padding, IntArrayRef dilation,
                                                                    bool transposed, IntArrayRef extra,
                                                                    std::int64_t groups, std::array<bool, 3> wanted) {
  const std::int64_t channels = gradient.size(1);
  const Tensors made{wanted[0] ? at::empty_like(input) : at::Tensor(),
                     wanted[1] ? at::empty_like(weight) : at::Tensor(),
                     wanted[2] ? at::empty({channels}, gradient.options()) : at::Tensor()};
  Mirrors mirrors;
  const Sizes sizes{stride.vec(), padding.vec(), dilation.vec(), extra.vec(), transposed, groups};
  launch_into(made, current_stream(input.device().index()), mirrors,
              [sizes, gradient = mirrors.of(gradient), input = mirrors.of(input), weight = mirrors.of(weight), channels,
               wanted] {
                auto [of_input, of_weight, of_bias] = at::convolution_backward(
                    gradient, input, weight, IntArrayRef{channels}, sizes.stride, sizes.padding, sizes.dilation,
                    sizes.transposed, sizes.extra, sizes.groups, wanted);
                return Tensors{of_input, of_weight, of_bias};
              });
  return {made[0], made[1], made[2]};
}

const std::set<std::string> kOwn{"empty.memory_format",
                                 "empty_strided",
                                 "as_strided",
                                 "view",
                                 "_reshape_alias",
                                 "resize_",
                                 "set_",
                                 "set_.source_Storage",
                                 "set_.source_Storage_storage_offset",
                                 "set_.source_Tensor",
                                 "is_set_to",
                                 "_copy_from",
                                 "_copy_from_and_resize",
                                 "_local_scalar_dense",
                                 "record_stream",
                                 "native_dropout"};

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&call>()); }

// Operators that have a kernel for the CPU, and another one of parts for every other backend, give the CPU's numbers by
// the CPU's kernel alone.
void prefer_the_cpus(torch::Library& library) {
  constexpr std::size_t kPrefix = std::string_view("aten::").size();
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& each : dispatcher.getRegistrationsForDispatchKey(c10::DispatchKey::CPU)) {
    const auto op = dispatcher.findSchema(each);
    if (!op || each.getNamespace() != "aten") continue;
    const std::string name = c10::toString(each).substr(kPrefix);
    if (!kOwn.contains(name) && op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd))
      library.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&call>());
  }
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("as_strided", as_strided);
  library.impl("view", at::native::view);
  library.impl("_reshape_alias", at::native::_reshape_alias);
  library.impl("resize_", resize);
  library.impl("set_", set_nothing);
  library.impl("set_.source_Storage", set_storage);
  library.impl("set_.source_Storage_storage_offset", set_storage_at);
  library.impl("set_.source_Tensor", at::native::set_tensor_);
  library.impl("is_set_to", at::native::is_set_to);
  library.impl("_copy_from", copy_from);
  library.impl("_copy_from_and_resize", copy_and_resize);
  library.impl("_local_scalar_dense", local_scalar);
  library.impl("record_stream", record_stream);
  library.impl("native_dropout", dropout);
  library.impl("convolution_overrideable", convolution);
  library.impl("convolution_backward_overrideable", convolution_backward);
  prefer_the_cpus(library);
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) { library.fallback(torch::CppFunction::makeFallthrough()); }

// The lists of operators that autocast has for other accelerators.
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define TERRACE_LOWER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
  AT_FORALL_LOWER_PRECISION_FP(TERRACE_LOWER)
#undef TERRACE_LOWER
#define TERRACE_FLOAT(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
  AT_FORALL_FP32(TERRACE_FLOAT)
#undef TERRACE_FLOAT
#define TERRACE_SET(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
  AT_FORALL_FP32_SET_OPT_DTYPE(TERRACE_SET)
#undef TERRACE_SET
#define TERRACE_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_PROMOTE(TERRACE_PROMOTE)
#undef TERRACE_PROMOTE
}

}  // namespace
}  // namespace terrace::torch_device
