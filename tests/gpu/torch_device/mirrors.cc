// SPDX-License-Identifier: Apache-2.0
#include "gpu/torch_device/mirrors.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "gpu/torch_device/memory.h"

namespace terrace::torch_device {
namespace {

std::size_t bytes_spanned(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return 0;
  std::int64_t last = 0;
  for (std::int64_t each = 0; each < tensor.dim(); ++each) last += (tensor.size(each) - 1) * tensor.stride(each);
  return static_cast<std::size_t>(last + 1) * tensor.itemsize();
}

void like(const at::Tensor& made, const at::Tensor& tensor) {
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) made.unsafeGetTensorImpl()->set_wrapped_number(true);
  if (tensor.is_conj()) made._set_conj(true);
  if (tensor.is_neg()) made._set_neg(true);
}

}  // namespace

at::Tensor Mirrors::of(const at::Tensor& tensor, bool written) {
  if (!tensor.defined() || !tensor.is_privateuseone()) return tensor;
  touched_.push_back({.address = tensor.const_data_ptr(), .bytes = bytes_spanned(tensor), .written = written});
  const auto [seen, fresh] = tensors_.try_emplace(tensor.unsafeGetTensorImpl());
  if (!fresh) return seen->second;
  c10::StorageImpl& source = *tensor.storage().unsafeGetStorageImpl();
  const auto [found, first] = storages_.try_emplace(&source);
  if (first) {
    const void* const at = source.data_ptr().get();
    found->second = c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), source.nbytes(),
        c10::DataPtr(at == nullptr ? nullptr : mirror_of(at), c10::Device(c10::kCPU)), nullptr, false);
  }
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(found->second), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  like(made, tensor);
  return seen->second = made;
}

at::Tensor borrowed(const at::Tensor& host) {
  at::Tensor made = at::from_blob(host.data_ptr(), host.sizes(), host.strides(), host.options());
  like(made, host);
  return made;
}

at::Tensor empty_like_meta(const at::Tensor& meta, c10::Device device) {
  const c10::DeviceGuard guard(device);
  return at::detail::empty_strided_generic(meta.sizes(), meta.strides(), &device_memory(),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), meta.scalar_type());
}

c10::IValue with_tensors(const c10::IValue& value, const Each& each) {
  if (value.isTensor()) return each(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> made;
    for (const at::Tensor& tensor : value.toTensorVector()) made.push_back(each(tensor));
    return made;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> made;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
      made.push_back(tensor ? std::optional(each(*tensor)) : std::nullopt);
    return made;
  }
  return value;
}

void below_autograd(const std::function<void()>& work) {
  const c10::impl::ExcludeDispatchKeyGuard below(c10::autograd_dispatch_keyset_with_ADInplaceOrView);
  work();
}

}  // namespace terrace::torch_device
