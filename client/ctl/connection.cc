// SPDX-License-Identifier: Apache-2.0
#include "ctl/connection.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace terrace::ctl {
namespace {

constexpr const char* kHowToStart =
    "start one with `terraced` or `systemctl start terraced`, or name its admin socket with --socket";

}  // namespace

Result<std::string> find_socket(const std::string& given) {
  if (!given.empty()) return given;
  if (const char* named = std::getenv("TERRACE_ADMIN_SOCKET"); named != nullptr && *named != '\0') return named;
  std::vector<std::string> places;
  if (const char* runtime = std::getenv("XDG_RUNTIME_DIR"); runtime != nullptr && *runtime != '\0')
    places.push_back(std::string(runtime) + "/terrace/admin.sock");
  places.emplace_back("/run/terrace/admin.sock");
  for (const std::string& place : places)
    if (::access(place.c_str(), F_OK) == 0) return place;
  return fail(ErrorCode::kNotFound,
              fmt::format("there is no daemon's socket at {}; {}", fmt::join(places, " nor at "), kHowToStart));
}

Connection::Connection(std::string socket) : socket_(std::move(socket)) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);  // a listing of every tensor is long
  stub_ =
      v1::Admin::NewStub(grpc::CreateCustomChannel("unix:" + socket_, grpc::InsecureChannelCredentials(), arguments));
}

Error Connection::explain(const grpc::Status& status) const {
  const auto code = static_cast<ErrorCode>(status.error_code());
  const std::string said = status.error_message().empty() ? std::string(name(code)) : status.error_message();
  if (code == ErrorCode::kUnimplemented)
    return {code, fmt::format("{} does not offer this operation ({}): is this the admin socket?", socket_, said), 0};
  // What the daemon itself says comes with details.
  if (code != ErrorCode::kUnavailable || !status.error_details().empty()) return {code, said, 0};
  if (::access(socket_.c_str(), R_OK | W_OK) != 0) {
    const int error = errno;
    if (error == EACCES)
      return {ErrorCode::kPermissionDenied,
              fmt::format("{} belongs to the daemon's user: run this as that user or root", socket_), error};
    return {code, fmt::format("no daemon at {}: {}; {}", socket_, std::strerror(error), kHowToStart), error};
  }
  return {code, fmt::format("no daemon answers at {}: {}; {}", socket_, status.error_message(), kHowToStart), 0};
}

}  // namespace terrace::ctl
