// SPDX-License-Identifier: Apache-2.0
#include "front/grpc/peers.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

namespace terrace::front {
namespace {

constexpr int kNumbersMax = 1 << 16;  // a larger range would cost the kernel a larger table, for no more safety

int descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
  return static_cast<int>(std::min<rlim_t>(limit.rlim_cur, 2 * kNumbersMax));
}

}  // namespace

GrpcPeers::GrpcPeers() : first_(descriptor_limit() / 2), end_(descriptor_limit()), next_(first_) {}

Result<Fd> GrpcPeers::add(Fd connection, const Peer& peer) {
  const std::lock_guard lock(mutex_);
  if (next_ >= end_) next_ = first_;
  int number = ::fcntl(connection.get(), F_DUPFD_CLOEXEC, next_);
  if (number < 0) number = ::fcntl(connection.get(), F_DUPFD_CLOEXEC, first_);  // none free above next_
  if (number < 0)
    return fail(ErrorCode::kResourceExhausted, "no descriptor is left for a connection: raise LimitNOFILE", errno);
  next_ = number + 1;
  peers_.insert_or_assign(number, peer);
  return Fd(number);
}

std::optional<Peer> GrpcPeers::find(std::string_view grpc_peer) const {
  constexpr std::string_view kPrefix = "fd:";
  if (!grpc_peer.starts_with(kPrefix)) return std::nullopt;
  int number = 0;
  const char* end = grpc_peer.data() + grpc_peer.size();
  const auto [rest, error] = std::from_chars(grpc_peer.data() + kPrefix.size(), end, number);
  if (error != std::errc() || rest != end) return std::nullopt;
  const std::lock_guard lock(mutex_);
  const auto found = peers_.find(number);
  if (found == peers_.end()) return std::nullopt;
  return found->second;
}

}  // namespace terrace::front
