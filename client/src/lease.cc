// SPDX-License-Identifier: Apache-2.0
#include "terrace/lease.h"

#include <cerrno>
#include <utility>

#include "session.h"
#include "stream_releases.h"

namespace terrace {
namespace {

// Word first, then the hold that keeps the word mapped.
shm::Outcome end_lease(const LeaseToken& token) noexcept {
  const int kept = errno;  // deleters run anywhere
  const shm::Outcome outcome = token.session->give_back(token.handle, static_cast<shm::Mode>(token.mode));
  token.session->let_go();
  errno = kept;
  return outcome;
}

}  // namespace

void release_token(LeaseToken token) noexcept {
  if (token.session == nullptr || token.session->forked()) return;
  end_lease(token);
}

void release_token(LeaseToken token, Place place, std::span<void* const> cuda_streams) noexcept {
  if (token.session == nullptr || token.session->forked()) return;
  const cuda::Context context = token.session->gpu_context(place.number());
  if (context == nullptr) return release_token(token);
  client::release_past_soon(context, cuda_streams, token);
}

void tear_token(LeaseToken token) noexcept {
  if (token.session == nullptr || token.session->forked() || token.mode != Mode::kOverwrite) return;
  token.session->tear(token.handle);
}

Lease::Lease(Lease&& other) noexcept
    : tensor_(other.tensor_),
      token_(std::exchange(other.token_, {})),
      place_(other.place_),
      writable_(std::exchange(other.writable_, false)),
      address_(std::exchange(other.address_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      cuda_device_(std::exchange(other.cuda_device_, {})) {}

Lease& Lease::operator=(Lease&& other) noexcept {
  if (this == &other) return *this;
  release_token(detach());
  tensor_ = other.tensor_;
  token_ = std::exchange(other.token_, {});
  place_ = other.place_;
  writable_ = std::exchange(other.writable_, false);
  address_ = std::exchange(other.address_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  cuda_device_ = std::exchange(other.cuda_device_, {});
  return *this;
}

Lease::~Lease() { release_token(token_); }

Result<void> Lease::releasable() const {
  if (token_.session == nullptr) {
    return fail(ErrorCode::kFailedPrecondition, "the lease on \"" + tensor_.name() + "\" was released already");
  }
  if (token_.session->forked()) {
    return fail(
        ErrorCode::kFailedPrecondition,
        "the lease on \"" + tensor_.name() + "\" is of the process that this one was forked from: it stays there");
  }
  return {};
}

Result<void> keep_past(const LeaseToken& token, Place place, std::span<void* const> cuda_streams,
                       std::shared_ptr<const void> part) {
  if (token.session == nullptr || token.session->forked()) return {};
  return client::keep_past(token.session->gpu_context(place.number()), cuda_streams, std::move(part));
}

Result<void> Lease::release(void* cuda_stream) {
  if (Result<void> can = releasable(); !can) return can;
  const cuda::Context context = token_.session->gpu_context(place_.number());
  if (Result<void> done = client::release_past(context, {&cuda_stream, 1}, token_); !done) return done;
  detach();
  return {};
}

Result<void> Lease::release() {
  const Result<void> can = releasable();
  const LeaseToken token = detach();
  if (!can) return can;
  switch (end_lease(token)) {
    case shm::Outcome::kStale:
    case shm::Outcome::kDone:  // of a tensor that was destroyed meanwhile, too: it is over either way
      return {};
    default:
      return fail(ErrorCode::kInternal,
                  "the shared table counts no lease on \"" + tensor_.name() + "\": somebody wrote there");
  }
}

Result<void> Lease::abandon() {
  tear_token(token_);
  return release();
}

LeaseToken Lease::detach() noexcept {
  cuda_device_.reset();
  writable_ = false;
  address_ = nullptr;
  bytes_ = 0;
  return std::exchange(token_, {});
}

}  // namespace terrace
