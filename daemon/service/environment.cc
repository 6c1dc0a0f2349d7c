// SPDX-License-Identifier: Apache-2.0
#include "service/environment.h"

#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <string_view>

namespace terrace::service {

std::optional<std::uint64_t> number_from_environment(const char* name) {
  const char* variable = std::getenv(name);
  if (variable == nullptr) return std::nullopt;
  const std::string_view text(variable);
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

Duration watchdog_period_from_environment() {
  constexpr std::uint64_t kMicrosecondsMax = INT64_MAX / 1000;
  const auto microseconds = number_from_environment("WATCHDOG_USEC");
  if (!microseconds || *microseconds > kMicrosecondsMax) return Duration::zero();
  const auto pid = number_from_environment("WATCHDOG_PID");
  if (pid && *pid != 0 && *pid != static_cast<std::uint64_t>(getpid())) return Duration::zero();
  return std::chrono::microseconds(*microseconds / 2);
}

}  // namespace terrace::service
