// SPDX-License-Identifier: Apache-2.0
#include "gpu/torch_device/copies.h"

#include <c10/core/DeviceGuard.h>

#include "gpu/torch_device/memory.h"
#include "gpu/torch_device/mirrors.h"

namespace terrace::torch_device {
namespace {

void copy_behind(const c10::Stream& stream, at::Tensor to, at::Tensor from, const Mirrors& mirrors) {
  launch(
      stream, "a copy", [to = std::move(to), from = std::move(from)] { below_autograd([&] { to.copy_(from); }); },
      mirrors.touched());
}

void copy_between(const at::Tensor& from, const at::Tensor& to) {
  Mirrors mirrors;
  const c10::Stream theirs = current_stream(from.device().index());
  const c10::Stream ours = current_stream(to.device().index());
  Mark(theirs).hold_back(ours);
  copy_behind(ours, mirrors.of(to, true), mirrors.of(from), mirrors);
  Mark(ours).hold_back(theirs);
}

void copy_up(const at::Tensor& from, const at::Tensor& to, const c10::Stream& stream, bool non_blocking) {
  Mirrors mirrors;
  const bool pinned = is_pinned(from.const_data_ptr());
  copy_behind(stream, mirrors.of(to, true), pinned ? borrowed(from) : from.detach().clone(), mirrors);
  if (!pinned) return;
  note_copy(from.const_data_ptr(), stream);
  if (!non_blocking) synchronize(stream);
}

void copy_down(const at::Tensor& from, const at::Tensor& to, const c10::Stream& stream, bool non_blocking) {
  Mirrors mirrors;
  const bool pinned = is_pinned(to.const_data_ptr());
  copy_behind(stream, borrowed(to), mirrors.of(from), mirrors);
  if (pinned) note_copy(to.const_data_ptr(), stream);
  if (!pinned || !non_blocking) synchronize(stream);
}

}  // namespace

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (to.numel() == 0) return to;
  const c10::Device device = to.is_privateuseone() ? to.device() : from.device();
  const c10::DeviceGuard guard(device);
  const c10::Stream stream = current_stream(device.index());
  if (!from.is_privateuseone()) {
    copy_up(from, to, stream, non_blocking);
  } else if (!to.is_privateuseone()) {
    copy_down(from, to, stream, non_blocking);
  } else if (from.device() != to.device()) {
    copy_between(from, to);
  } else {
    Mirrors mirrors;
    const at::Tensor target = mirrors.of(to, true);
    copy_behind(stream, target, mirrors.of(from), mirrors);
  }
  return to;
}

}  // namespace terrace::torch_device
