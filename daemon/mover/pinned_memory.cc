// SPDX-License-Identifier: Apache-2.0
#include "mover/pinned_memory.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"

namespace terrace::mover {

class PinnedMemory::Pin final : public Job {
 public:
  Pin(PinnedMemory& owner, std::shared_ptr<Slice> slice) : owner_(owner), slice_(std::move(slice)) {}

  void run() override {
    tier::CudaContext& context = *owner_.context_;
    if (context.lost()) return;
    const cuda::Current current(context.api(), context.context());
    const auto pinned =
        context.noted(context.api().host_register(slice_->memory, slice_->bytes, cuda::kHostRegisterPortable));
    slice_->registered = pinned_ = pinned.has_value();
  }

  void done() override {
    if (!pinned_) {
      owner_.refused_bytes_ += slice_->bytes;
    } else if (!slice_->leaving) {
      slice_->usable = true;
      owner_.pinned_bytes_ += slice_->bytes;
    }
    owner_.jobs_.pop_front();  // deletes this
  }

 private:
  PinnedMemory& owner_;
  std::shared_ptr<Slice> slice_;
  bool pinned_ = false;  // by run(); the slice's own may be undone already when done() is called
};

class PinnedMemory::Unpin final : public Job {
 public:
  Unpin(PinnedMemory& owner, std::shared_ptr<Slice> slice) : owner_(owner), slice_(std::move(slice)) {}

  void run() override {
    tier::CudaContext& context = *owner_.context_;
    if (!slice_->registered) return;
    const cuda::Current current(context.api(), context.context());
    static_cast<void>(context.noted(context.api().host_unregister(slice_->memory)));
    slice_->registered = false;
  }
  void done() override { owner_.jobs_.pop_front(); }  // deletes this

 private:
  PinnedMemory& owner_;
  std::shared_ptr<Slice> slice_;
};

PinnedMemory::~PinnedMemory() {
  TERRACE_CHECK(jobs_.empty());
  if (slices_.empty()) return;
  const cuda::Current current(context_->api(), context_->context());
  for (const auto& [memory, slice] : slices_) {
    if (slice->registered) static_cast<void>(context_->api().host_unregister.status(slice->memory));
  }
}

void PinnedMemory::submit(std::unique_ptr<Job> job) {
  jobs_.push_back(std::move(job));
  workers_.submit(*jobs_.back(), Workers::Lane::kSegment);
}

void PinnedMemory::add(SessionId session, TierId tier, tier::Extent extent, std::byte* memory) {
  if (context_ == nullptr) return;
  for (std::uint64_t at = 0; at < extent.bytes; at += kSliceBytes) {
    auto slice = std::make_shared<Slice>(Slice{.memory = memory + at,
                                               .bytes = std::min(kSliceBytes, extent.bytes - at),
                                               .session = session,
                                               .tier = tier,
                                               .offset = extent.offset + at});
    TERRACE_CHECK(slices_.emplace(slice->memory, slice).second);
    submit(std::make_unique<Pin>(*this, std::move(slice)));
  }
}

PinnedMemory::Slices::iterator PinnedMemory::erase(Slices::iterator at) {
  const std::shared_ptr<Slice> slice = at->second;
  slice->leaving = true;
  if (std::exchange(slice->usable, false)) pinned_bytes_ -= slice->bytes;
  submit(std::make_unique<Unpin>(*this, slice));
  return slices_.erase(at);
}

void PinnedMemory::remove(SessionId session, TierId tier, tier::Extent extent) {
  for (auto at = slices_.begin(); at != slices_.end();) {
    const Slice& slice = *at->second;
    const bool leaves =
        slice.session == session && slice.tier == tier && slice.offset >= extent.offset && slice.offset < extent.end();
    at = leaves ? erase(at) : std::next(at);
  }
}

void PinnedMemory::drop(SessionId session) {
  for (auto at = slices_.begin(); at != slices_.end();) at = at->second->session == session ? erase(at) : std::next(at);
}

std::uint64_t PinnedMemory::run_bytes(const std::byte* memory, std::uint64_t bytes) const {
  auto after = slices_.upper_bound(memory);
  if (after == slices_.begin()) return 0;
  const Slice& slice = *std::prev(after)->second;
  const auto into = static_cast<std::uint64_t>(memory - slice.memory);
  return slice.usable && into < slice.bytes ? std::min(bytes, slice.bytes - into) : 0;
}

bool PinnedMemory::covers(const std::byte* memory, std::uint64_t bytes) const {
  while (bytes > 0) {
    const std::uint64_t run = run_bytes(memory, bytes);
    if (run == 0) return false;
    memory += run;
    bytes -= run;
  }
  return true;
}

}  // namespace terrace::mover
