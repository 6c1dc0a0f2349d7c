// SPDX-License-Identifier: Apache-2.0
#include "front/grpc/stream.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

namespace terrace::front {

std::shared_ptr<StallGuard> StallGuard::start(grpc::CallbackServerContext& context, Duration period) {
  std::shared_ptr<StallGuard> guard(new StallGuard(context, period));
  const std::lock_guard lock(guard->mutex_);
  guard->arm();
  return guard;
}

void StallGuard::arm() {
  alarm_ = std::make_unique<grpc::Alarm>();
  alarm_->Set(std::chrono::system_clock::now() + period_, [guard = weak_from_this()](bool) {
    if (const auto self = guard.lock()) self->fired();
  });
}

void StallGuard::fired() {
  const std::lock_guard lock(mutex_);
  if (stopped_) return;
  if (!std::exchange(moved_, false)) return context_.TryCancel();
  arm();
}

void StallGuard::progress() {
  const std::lock_guard lock(mutex_);
  moved_ = true;
}

void StallGuard::stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  alarm_.reset();
}

void StreamLease::acquire(std::uint32_t place, Time deadline, std::uint64_t offset, std::uint64_t bytes,
                          std::function<void(Result<void>)> done) {
  engine::Request request{.session = session_, .deadline = deadline, .body = engine::Acquire{place, mode_, {tensor_}}};
  posted_.post(gateway_, std::move(request), [this, offset, bytes, done = std::move(done)](engine::Reply reply) {
    if (!reply.result) return done(std::unexpected(reply.result.error()));
    held_ = true;
    placement_ = std::get<engine::Located>(*reply.result).tensors.at(0);
    const std::uint64_t size = placement_.bytes;
    if (offset >= size || bytes > size - offset) {
      return done(fail(
          ErrorCode::kInvalidArgument,
          fmt::format("offset_bytes {} and bytes {} pass the tensor's end: it has {} bytes", offset, bytes, size)));
    }
    offset_ = offset;
    total_bytes_ = bytes == 0 ? size - offset : bytes;
    done({});
  });
}

Result<std::byte*> StreamLease::next() {
  std::byte* start = gateway_.address(session_, placement_);
  if (start == nullptr) {
    return fail(ErrorCode::kAborted,
                "the session ended while the call was under way, or its bytes are a GPU's: only a place of the host's "
                "memory is read and written here");
  }
  return start + offset_ + done_bytes_;
}

Result<void> StreamLease::copy_out(std::byte* target, std::uint64_t bytes) {
  const auto source = next();
  if (!source) return std::unexpected(source.error());
  std::memcpy(target, *source, bytes);
  done_bytes_ += bytes;
  return {};
}

Result<void> StreamLease::copy_in(const std::byte* source, std::uint64_t bytes) {
  const auto target = next();
  if (!target) return std::unexpected(target.error());
  std::memcpy(*target, source, bytes);
  done_bytes_ += bytes;
  return {};
}

void StreamLease::end(bool failed, std::function<void()> then) {
  if (!std::exchange(held_, false)) return then();
  const bool torn = failed && mode_ == shm::Mode::kOverwrite;
  post_surely(gateway_, session_, engine::Release{mode_, {tensor_}, torn}, std::move(then));
}

}  // namespace terrace::front
