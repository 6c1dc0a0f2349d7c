// SPDX-License-Identifier: Apache-2.0
#include "front/grpc/read.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "front/grpc/authenticate.h"
#include "front/grpc/convert.h"
#include "front/grpc/refused.h"

namespace terrace::front {
namespace {

// Lease, then copy and send in turn, one piece at a time, then give the lease back and finish.
class ReadCall final : public grpc::ServerWriteReactor<v1::ReadResponse> {
 public:
  ReadCall(const StreamSettings& settings, SessionId session, Handle tensor)
      : gateway_(settings.gateway), lease_(settings.gateway, session, tensor, shm::Mode::kRead) {}

  void start(const StreamSettings& settings, grpc::CallbackServerContext& context, const v1::ReadRequest& request) {
    guard_ = StallGuard::start(context, settings.timeout);
    lease_.acquire(settings.place, call_deadline(context, gateway_, settings.timeout), request.offset_bytes(),
                   request.bytes(), [this](const Result<void>& granted) {
                     if (!granted) return end(granted);
                     copy();
                   });
  }

  void OnCancel() override { lease_.cancel(); }
  void OnWriteDone(bool ok) override {
    if (!ok) return end(fail(ErrorCode::kCancelled, "the client does not read any more"));
    guard_->progress();
    if (lease_.left_bytes() == 0) return end({});
    if (!gateway_.run([this] { copy(); }))
      end(fail(ErrorCode::kResourceExhausted, "the daemon's queue is full: read again"));
  }
  void OnDone() override {
    guard_->stop();
    delete this;
  }

 private:
  // Reactor thread.
  void copy() {
    const std::uint64_t bytes = std::min(lease_.left_bytes(), kCopyBytesMax);
    std::string& data = *response_.mutable_data();
    data.resize(bytes);
    if (auto copied = lease_.copy_out(reinterpret_cast<std::byte*>(data.data()), bytes); !copied) return end(copied);
    StartWrite(&response_);
  }
  void end(const Result<void>& result) {
    lease_.end(!result, [this, status = result ? grpc::Status::OK : to_grpc(result.error())] { Finish(status); });
  }

  Gateway& gateway_;
  StreamLease lease_;
  std::shared_ptr<StallGuard> guard_;
  v1::ReadResponse response_;
};

}  // namespace

grpc::ServerWriteReactor<v1::ReadResponse>* start_read(const StreamSettings& settings,
                                                       grpc::CallbackServerContext& context,
                                                       const v1::ReadRequest& request) {
  const auto session = authenticate(settings.gateway, settings.peers, context, request.token());
  if (!session) return new Refused<v1::ReadResponse>(session.error());
  auto* call = new ReadCall(settings, *session, Handle::unpack(request.tensor()));
  call->start(settings, context, request);
  return call;
}

}  // namespace terrace::front
