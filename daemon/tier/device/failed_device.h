// SPDX-License-Identifier: Apache-2.0
// A GPU that failed before it could be used: a tier that has its place among the others, and gives nothing.
#pragma once

#include "base/check.h"
#include "cuda/abi.h"
#include "tier/mapped_tier.h"

namespace terrace::tier {

// See MappedTier. It never has a segment, and what was there is gone where `cause` says so (DataLoss).
class FailedDevice final : public MappedTier {
 public:
  FailedDevice(const Error& cause, const cuda::Uuid& uuid)
      : cause_(cause), why_{ErrorCode::kUnavailable, cause.message, cause.system_error}, uuid_(uuid) {}

  Kind kind() const override { return Kind::kDevice; }
  Result<Fd> create_segment(std::uint64_t /*bytes*/) const override { return std::unexpected(why_); }
  Result<void> install(SessionId /*session*/, Extent /*extent*/, Fd /*segment*/) override {
    return std::unexpected(cause_);
  }
  int descriptor(SessionId /*session*/, std::uint64_t /*offset*/) const override {
    check_failed("a segment of a GPU that failed", __FILE__, __LINE__);
  }
  Result<void> remove(SessionId /*session*/, Extent /*extent*/) override { return {}; }
  void drop(SessionId /*session*/) override {}
  void leave_bytes() override {}
  std::byte* address(SessionId /*session*/, std::uint64_t /*offset*/) const override {
    check_failed("memory of a GPU that failed", __FILE__, __LINE__);
  }
  std::array<std::uint8_t, 16> gpu() const override { return uuid_; }
  std::optional<Error> failure() const override { return cause_; }

 private:
  const Error cause_;
  const Error why_;
  const cuda::Uuid uuid_;
};

}  // namespace terrace::tier
