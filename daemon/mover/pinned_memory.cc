// SPDX-License-Identifier: Apache-2.0
#include "mover/pinned_memory.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"

namespace terrace::mover {

class PinnedMemory::Work : public Job {
 public:
  Work(PinnedMemory& owner, std::shared_ptr<Slice> slice) : owner_(owner), slice_(std::move(slice)) {}
  void done() override { owner_.jobs_.erase(place_); }  // deletes this

 protected:
  PinnedMemory& owner_;
  std::shared_ptr<Slice> slice_;

 private:
  friend class PinnedMemory;
  std::list<std::unique_ptr<Work>>::iterator place_;
};

class PinnedMemory::Pin final : public Work {
 public:
  using Work::Work;

  void run() override {
    if (!change(*slice_, State::kQueued, State::kPinning)) return;
    result_ = registered() ? State::kPinned : State::kRefused;
    slice_->state = result_;
    slice_->state.notify_all();
  }

  void done() override {
    if (result_ == State::kRefused) owner_.refused_bytes_ += slice_->piece.bytes;
    if (result_ == State::kPinned && !slice_->leaving) {
      slice_->usable = true;
      owner_.pinned_bytes_ += slice_->piece.bytes;
    }
    Work::done();
  }

 private:
  bool registered() const {
    tier::CudaContext& context = *owner_.context_;
    if (context.lost()) return false;
    const cuda::Current current(context.api(), context.context());
    return context
        .noted(context.api().host_register(slice_->piece.memory, slice_->piece.bytes, cuda::kHostRegisterPortable))
        .has_value();
  }

  State result_ = State::kLeft;  // of run(); the slice may be let go of already when done() is called
};

class PinnedMemory::Unpin final : public Work {
 public:
  using Work::Work;

  void run() override {
    slice_->state.wait(State::kPinning);
    owner_.unregister(*slice_);
  }
};

PinnedMemory::PinnedMemory(Workers& workers, tier::CudaContext* context) : workers_(workers), context_(context) {}

PinnedMemory::~PinnedMemory() {
  TERRACE_CHECK(jobs_.empty());
  for (const auto& [memory, slice] : slices_) unregister(*slice);
}

void PinnedMemory::unregister(Slice& slice) {
  if (!change(slice, State::kPinned, State::kLeft)) return;
  const cuda::Current current(context_->api(), context_->context());
  static_cast<void>(context_->noted(context_->api().host_unregister(slice.piece.memory)));
}

void PinnedMemory::submit(std::unique_ptr<Work> work, Workers::Lane lane) {
  Work& submitted = *work;
  submitted.place_ = jobs_.insert(jobs_.end(), std::move(work));
  workers_.submit(submitted, lane);
}

void PinnedMemory::add(SessionId session, TierId tier, tier::Extent extent, std::byte* memory) {
  if (context_ == nullptr) return;
  for (std::uint64_t at = 0; at < extent.bytes; at += kSliceBytes) {
    auto slice = std::make_shared<Slice>(Piece{.memory = memory + at,
                                               .bytes = std::min(kSliceBytes, extent.bytes - at),
                                               .session = session,
                                               .tier = tier,
                                               .offset = extent.offset + at});
    TERRACE_CHECK(slices_.emplace(slice->piece.memory, slice).second);
    submit(std::make_unique<Pin>(*this, std::move(slice)), Workers::Lane::kPin);
  }
}

PinnedMemory::Slices::iterator PinnedMemory::erase(Slices::iterator at) {
  const std::shared_ptr<Slice> slice = at->second;
  slice->leaving = true;
  if (std::exchange(slice->usable, false)) pinned_bytes_ -= slice->piece.bytes;
  if (!change(*slice, State::kQueued, State::kLeft))
    submit(std::make_unique<Unpin>(*this, slice), Workers::Lane::kSegment);
  return slices_.erase(at);
}

void PinnedMemory::stop() {
  for (const auto& [memory, slice] : slices_) static_cast<void>(change(*slice, State::kQueued, State::kLeft));
}

void PinnedMemory::remove(SessionId session, TierId tier, tier::Extent extent) {
  for (auto at = slices_.begin(); at != slices_.end();) {
    const Piece& piece = at->second->piece;
    const bool leaves =
        piece.session == session && piece.tier == tier && piece.offset >= extent.offset && piece.offset < extent.end();
    at = leaves ? erase(at) : std::next(at);
  }
}

void PinnedMemory::drop(SessionId session) {
  for (auto at = slices_.begin(); at != slices_.end();)
    at = at->second->piece.session == session ? erase(at) : std::next(at);
}

std::uint64_t PinnedMemory::run_bytes(const std::byte* memory, std::uint64_t bytes) const {
  auto after = slices_.upper_bound(memory);
  if (after == slices_.begin()) return 0;
  const Slice& slice = *std::prev(after)->second;
  const auto into = static_cast<std::uint64_t>(memory - slice.piece.memory);
  return slice.usable && into < slice.piece.bytes ? std::min(bytes, slice.piece.bytes - into) : 0;
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
