// SPDX-License-Identifier: Apache-2.0
#include "ctl/upgrade.h"

#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

namespace terrace::ctl {
namespace {

constexpr std::chrono::seconds kPatience{60};
constexpr std::chrono::milliseconds kPause{20};

// The status of a daemon other than `process`.
Result<v1::NodeStatus> next_daemon(const std::string& socket, std::int32_t process) {
  const auto limit = std::chrono::steady_clock::now() + kPatience;
  Error last{ErrorCode::kUnavailable, "it does not stop", 0};
  while (std::chrono::steady_clock::now() < limit) {
    Connection connection(socket);  // gRPC waits ever longer before it tries a connection again
    auto answer = connection.call(&v1::Admin::Stub::GetStatus, v1::AdminGetStatusRequest());
    if (answer && answer->status().process() != process) return answer->status();
    if (!answer) last = answer.error();
    std::this_thread::sleep_for(kPause);
  }
  return fail(ErrorCode::kUnavailable,
              fmt::format("the next daemon does not serve after {} s: {}", kPatience.count(), last.message));
}

std::string text_of(const v1::NodeStatus& status) {
  return fmt::format("process {} of version {} goes on, with {} sessions\n", status.process(), status.version(),
                     status.sessions_size());
}

}  // namespace

Result<std::string> upgrade(Connection& connection, const UpgradeOptions& options) {
  v1::UpgradeRequest request;
  request.set_check_only(options.check_only);
  const auto answer = connection.call(&v1::Admin::Stub::Upgrade, request);
  if (!answer) return std::unexpected(answer.error());
  nlohmann::ordered_json json = {{"version", answer->version()}, {"process", answer->process()}};
  if (options.check_only)
    return options.json ? json.dump(2) + '\n'
                        : fmt::format("version {} could go on; nothing was stopped\n", answer->version());
  const auto next = next_daemon(connection.socket(), answer->process());
  if (!next) return std::unexpected(next.error());
  json = {{"version", next->version()}, {"process", next->process()}, {"sessions", next->sessions_size()}};
  return options.json ? json.dump(2) + '\n' : text_of(*next);
}

}  // namespace terrace::ctl
