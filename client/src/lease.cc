// SPDX-License-Identifier: Apache-2.0
#include "terrace/lease.h"

#include <cerrno>
#include <utility>

#include "session.h"

namespace terrace {
namespace {

// Word first, then the reference that keeps the word mapped.
shm::Outcome end_lease(const LeaseToken& token) noexcept {
  const int kept = errno;  // deleters run anywhere
  const shm::Outcome outcome = token.session->give_back(token.handle, static_cast<shm::Mode>(token.mode));
  token.session->unreference();
  errno = kept;
  return outcome;
}

}  // namespace

void release_token(LeaseToken token) noexcept {
  if (token.session == nullptr || token.session->forked()) return;
  end_lease(token);
}

Lease::Lease(Lease&& other) noexcept
    : tensor_(other.tensor_),
      token_(std::exchange(other.token_, {})),
      place_(other.place_),
      writable_(std::exchange(other.writable_, false)),
      address_(std::exchange(other.address_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

Lease& Lease::operator=(Lease&& other) noexcept {
  if (this == &other) return *this;
  release_token(detach());
  tensor_ = other.tensor_;
  token_ = std::exchange(other.token_, {});
  place_ = other.place_;
  writable_ = std::exchange(other.writable_, false);
  address_ = std::exchange(other.address_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

Lease::~Lease() { release_token(token_); }

Result<void> Lease::release() {
  const LeaseToken token = detach();
  if (token.session == nullptr) {
    return fail(ErrorCode::kFailedPrecondition, "the lease on \"" + tensor_.name() + "\" was released already");
  }
  if (token.session->forked()) {
    return fail(
        ErrorCode::kFailedPrecondition,
        "the lease on \"" + tensor_.name() + "\" is of the process that this one was forked from: it stays there");
  }
  switch (end_lease(token)) {
    case shm::Outcome::kStale:
    case shm::Outcome::kDone:  // of a tensor that was destroyed meanwhile, too: it is over either way
      return {};
    default:
      return fail(ErrorCode::kInternal,
                  "the shared table counts no lease on \"" + tensor_.name() + "\": somebody wrote there");
  }
}

LeaseToken Lease::detach() noexcept {
  writable_ = false;
  address_ = nullptr;
  bytes_ = 0;
  return std::exchange(token_, {});
}

}  // namespace terrace
