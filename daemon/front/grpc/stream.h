// SPDX-License-Identifier: Apache-2.0
// What Read and Write share: one lease for the length of a call, the part of the tensor that the call is about, and an
// end to calls whose client stands still.
#pragma once

#include <grpcpp/alarm.h>
#include <grpcpp/server_context.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "engine/values/request.h"
#include "front/gateway/gateway.h"
#include "front/grpc/call.h"
#include "front/grpc/peers.h"

namespace terrace::front {

// Bytes copied by one job on the reactor thread: it must not keep others waiting.
inline constexpr std::uint64_t kCopyBytesMax = 256 * 1024;

// What stays the same from call to call.
struct StreamSettings {
  Gateway& gateway;
  const GrpcPeers& peers;
  std::uint32_t place;  // where Read and Write lease
  Duration timeout;     // of the wait for the lease, and of a client that stands still
};

// Cancels a call that made no progress for a whole period: a client that neither reads nor writes would keep its lease.
// Made when the call begins; stop() before its context dies.
class StallGuard : public std::enable_shared_from_this<StallGuard> {
 public:
  static std::shared_ptr<StallGuard> start(grpc::CallbackServerContext& context, Duration period);
  void progress();
  void stop();

 private:
  StallGuard(grpc::CallbackServerContext& context, Duration period) : context_(context), period_(period) {}
  void arm();  // mutex_ held
  void fired();

  grpc::CallbackServerContext& context_;
  const Duration period_;
  std::mutex mutex_;
  bool stopped_ = false;
  bool moved_ = true;  // so that a wait for the lease as long as a period is not taken for a stall
  std::unique_ptr<grpc::Alarm> alarm_;
};

// The lease of one call and how far the call has come. Steps follow one another, from whatever thread, but for
// cancel().
class StreamLease {
 public:
  StreamLease(Gateway& gateway, SessionId session, Handle tensor, shm::Mode mode)
      : gateway_(gateway), session_(session), tensor_(tensor), mode_(mode) {}

  // Leases; `done` runs on the reactor thread with the part of the tensor from `offset` on, `bytes` of them or, for 0,
  // all that follow, checked against its size.
  void acquire(std::uint32_t place, Time deadline, std::uint64_t offset, std::uint64_t bytes,
               std::function<void(Result<void>)> done);
  // While it waits for its lease: give up.
  void cancel() { posted_.cancel(gateway_); }

  std::uint64_t total_bytes() const { return total_bytes_; }
  std::uint64_t done_bytes() const { return done_bytes_; }
  std::uint64_t left_bytes() const { return total_bytes_ - done_bytes_; }

  // Reactor thread: copies the next `bytes` (at most left_bytes()) out of the tensor or into it.
  Result<void> copy_out(std::byte* target, std::uint64_t bytes);
  Result<void> copy_in(const std::byte* source, std::uint64_t bytes);

  // Gives the lease back, if there is one; `then` runs when the engine has it. A failed overwrite gives up the content:
  // it would be neither the old bytes nor the new.
  void end(bool failed, std::function<void()> then);

 private:
  Result<std::byte*> next();

  Gateway& gateway_;
  const SessionId session_;
  const Handle tensor_;
  const shm::Mode mode_;
  Posted posted_;
  bool held_ = false;
  engine::Placement placement_;
  std::uint64_t offset_ = 0;
  std::uint64_t total_bytes_ = 0;
  std::uint64_t done_bytes_ = 0;
};

}  // namespace terrace::front
