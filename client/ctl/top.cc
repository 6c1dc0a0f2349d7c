// SPDX-License-Identifier: Apache-2.0
#include "ctl/top.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <thread>

#include "ctl/json.h"
#include "ctl/views.h"

namespace terrace::ctl {
namespace {

constexpr const char* kHomeAndClear = "\x1b[H\x1b[J";

// False when nobody reads any more.
bool show(const std::string& text) { return std::fputs(text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0; }

}  // namespace

Result<void> run_top(Connection& connection, const TopOptions& options) {
  const bool screen = !options.once && !options.json && ::isatty(STDOUT_FILENO) == 1;
  v1::NodeStatus before;
  auto taken_before = std::chrono::steady_clock::now();
  for (bool first = true;; first = false) {
    auto answer = connection.call(&v1::Admin::Stub::GetStatus, v1::AdminGetStatusRequest());
    if (!answer) return std::unexpected(answer.error());
    const auto taken = std::chrono::steady_clock::now();
    const double seconds = first ? 0 : std::chrono::duration<double>(taken - taken_before).count();
    v1::NodeStatus& now = *answer->mutable_status();
    std::string text = options.json ? to_json(now).dump() + '\n' : top_text(now, before, seconds);
    if (screen) text.insert(0, kHomeAndClear).append("\nCtrl-C to leave\n");
    if (!screen && !options.json && !first) text.insert(0, "\n");
    if (!show(text) || options.once) return {};
    before = std::move(now);
    taken_before = taken;
    std::this_thread::sleep_for(std::chrono::duration<double>(options.interval_seconds));
  }
}

}  // namespace terrace::ctl
