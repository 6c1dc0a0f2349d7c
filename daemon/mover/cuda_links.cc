// SPDX-License-Identifier: Apache-2.0
#include "mover/cuda_links.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/check.h"

namespace terrace::mover {

Result<std::unique_ptr<CudaLink>> CudaLink::create(tier::CudaContext& context, int wake) {
  std::unique_ptr<CudaLink> link(new CudaLink(context));
  int least = 0;
  int greatest = 0;
  {
    const cuda::Current current(context.api(), context.context());
    Result<void> asked = current.result();
    if (asked) asked = context.api().stream_priorities(&least, &greatest);
    if (!asked) return std::unexpected(std::move(asked.error()));
  }
  for (std::size_t number = 0; number < link->lanes_.size(); ++number) {
    auto lane = CudaLane::create(context, number < 2 ? greatest : least, wake);
    if (!lane) return std::unexpected(std::move(lane.error()));
    link->lanes_[number] = std::move(*lane);
  }
  return link;
}

CudaLink::~CudaLink() {
  for (auto& lane : lanes_) lane.reset();
  if (scratch_ == 0) return;
  const cuda::Current current(context_.api(), context_.context());
  static_cast<void>(context_.api().memory_free.status(scratch_));
}

// Streams of their own, since the copy engines take what lies in one stream in order, whoever waits for it.
CudaLane& CudaLink::lane(Way way, Class urgency) {
  const bool urgent = urgency <= Class::kAwaitedWriteBack;
  if (way == Way::kWithin) return *lanes_[4];
  return *lanes_[(urgent ? 0U : 2U) + (way == Way::kUp ? 0U : 1U)];
}

Result<void> CudaLink::move(CudaLane& lane, std::byte* to, const std::byte* from, std::uint64_t bytes) {
  if (from + bytes <= to || to + bytes <= from) return lane.within(to, from, bytes);
  TERRACE_CHECK(bytes <= kOverlapBytesMax);
  if (scratch_ == 0) {
    const cuda::Current current(context_.api(), context_.context());
    if (auto made = context_.noted(context_.api().memory_allocate(&scratch_, kOverlapBytesMax)); !made) return made;
  }
  auto* between = reinterpret_cast<std::byte*>(scratch_);  // NOLINT(performance-no-int-to-ptr)
  if (auto out = lane.within(between, from, bytes); !out) return out;
  return lane.within(to, between, bytes);
}

void CudaLink::collect() {
  for (auto& lane : lanes_) lane->collect();
}

Result<CudaLinks> CudaLinks::create(const std::vector<tier::MappedTier*>& tiers) {
  CudaLinks links;
  for (tier::MappedTier* tier : tiers) {
    links.links_.emplace_back();
    if (tier == nullptr || tier->cuda() == nullptr) continue;
    if (!links.wake_) links.wake_ = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!links.wake_) return fail(ErrorCode::kResourceExhausted, "no eventfd for the CUDA streams", errno);
    auto link = CudaLink::create(*tier->cuda(), links.wake_.get());
    if (link)
      links.links_.back() = std::move(*link);
    else
      tier->cuda()->give_up(link.error());
  }
  return links;
}

void CudaLinks::give_up(const tier::CudaContext* context, const Error& why) {
  for (auto& link : links_) {
    if (link == nullptr || &link->context() != context) continue;
    link->context().give_up(why);
    link.reset();
  }
}

tier::CudaContext* CudaLinks::any() const {
  const auto found = std::ranges::find_if(links_, [](const auto& link) { return link != nullptr; });
  return found == links_.end() ? nullptr : &(*found)->context();
}

void CudaLinks::collect() {
  std::uint64_t rings = 0;
  TERRACE_CHECK(read(wake_.get(), &rings, sizeof rings) == sizeof rings || errno == EAGAIN);
  for (auto& link : links_) {
    if (link != nullptr) link->collect();
  }
}

}  // namespace terrace::mover
