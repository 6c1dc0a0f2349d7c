// SPDX-License-Identifier: Apache-2.0
#include "front/grpc/write.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "front/grpc/authenticate.h"
#include "front/grpc/convert.h"

namespace terrace::front {
namespace {

constexpr std::size_t kDataBytesMax = 8 * 1024 * 1024;

// First message: target and lease. Then copy what came and ask for more in turn, until the client says that it is done.
class WriteCall final : public grpc::ServerReadReactor<v1::WriteRequest> {
 public:
  WriteCall(const StreamSettings& settings, grpc::CallbackServerContext& context, v1::WriteResponse& response)
      : settings_(settings),
        gateway_(settings.gateway),
        context_(context),
        response_(response),
        guard_(StallGuard::start(context, settings.timeout)) {
    StartRead(&request_);
  }

  void OnCancel() override {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
    if (lease_) lease_->cancel();
  }
  void OnReadDone(bool ok) override {
    guard_->progress();
    if (!ok) return over();
    if (request_.data().size() > kDataBytesMax)
      return end(fail(ErrorCode::kInvalidArgument, fmt::format("data has {} bytes: at most {} in one message",
                                                               request_.data().size(), kDataBytesMax)));
    if (!lease_) return first();
    if (request_.has_target())
      return end(fail(ErrorCode::kInvalidArgument, "target is there again: it goes into the first message alone"));
    take();
  }
  void OnDone() override {
    guard_->stop();
    delete this;
  }

 private:
  void first() {
    if (!request_.has_target())
      return end(fail(ErrorCode::kInvalidArgument, "target is missing: the first message names token and tensor"));
    const auto& target = request_.target();
    const auto session = authenticate(gateway_, settings_.peers, context_, target.token());
    if (!session) return end(std::unexpected(session.error()));
    const bool whole = target.offset_bytes() == 0 && target.bytes() == 0;
    {
      const std::lock_guard lock(mutex_);
      lease_.emplace(gateway_, *session, Handle::unpack(target.tensor()),
                     whole ? shm::Mode::kOverwrite : shm::Mode::kWrite);
      if (cancelled_) lease_->cancel();
    }
    lease_->acquire(settings_.place, call_deadline(context_, gateway_, settings_.timeout), target.offset_bytes(),
                    target.bytes(), [this](const Result<void>& granted) {
                      if (!granted) return end(granted);
                      take();
                    });
  }
  // Copies what came, on the reactor thread, a piece at a time; then asks for more.
  void take() {
    taken_ = 0;
    if (request_.data().size() > lease_->left_bytes())
      return end(fail(ErrorCode::kInvalidArgument,
                      fmt::format("more than the {} bytes of the target came", lease_->total_bytes())));
    copy_next();
  }
  void copy_next() {
    if (taken_ == request_.data().size()) return StartRead(&request_);
    if (!gateway_.run([this] { copy(); }))
      end(fail(ErrorCode::kResourceExhausted, "the daemon's queue is full: write again"));
  }
  void copy() {
    const std::uint64_t bytes = std::min<std::uint64_t>(request_.data().size() - taken_, kCopyBytesMax);
    const auto* source = reinterpret_cast<const std::byte*>(request_.data().data()) + taken_;
    if (auto copied = lease_->copy_in(source, bytes); !copied) return end(copied);
    taken_ += bytes;
    copy_next();
  }
  // The client sends no more: it is done, or gone.
  void over() {
    if (!lease_) return end(fail(ErrorCode::kInvalidArgument, "no message came: the first one names the target"));
    if (context_.IsCancelled()) return end(fail(ErrorCode::kCancelled, "the caller gave up"));
    if (lease_->left_bytes() != 0)
      return end(fail(ErrorCode::kInvalidArgument,
                      fmt::format("{} of {} bytes came: send them all", lease_->done_bytes(), lease_->total_bytes())));
    response_.set_bytes(lease_->total_bytes());
    end({});
  }
  void end(const Result<void>& result) {
    auto finish = [this, status = result ? grpc::Status::OK : to_grpc(result.error())] { Finish(status); };
    if (!lease_) return finish();
    lease_->end(!result, std::move(finish));
  }

  const StreamSettings& settings_;
  Gateway& gateway_;
  grpc::CallbackServerContext& context_;
  v1::WriteResponse& response_;
  std::shared_ptr<StallGuard> guard_;
  v1::WriteRequest request_;
  std::uint64_t taken_ = 0;  // bytes of request_ that are copied

  std::mutex mutex_;  // between OnCancel and the making of the lease
  bool cancelled_ = false;
  std::optional<StreamLease> lease_;
};

}  // namespace

grpc::ServerReadReactor<v1::WriteRequest>* start_write(const StreamSettings& settings,
                                                       grpc::CallbackServerContext& context,
                                                       v1::WriteResponse& response) {
  return new WriteCall(settings, context, response);
}

}  // namespace terrace::front
