// SPDX-License-Identifier: Apache-2.0
#include "config/config.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "base/check.h"

namespace terrace::config {

std::string_view name(TierKind kind) {
  switch (kind) {
    case TierKind::kDevice:
      return "device";
    case TierKind::kMemory:
      return "memory";
    case TierKind::kBlock:
      return "block";
  }
  check_failed("a TierKind", __FILE__, __LINE__);
}

std::string_view name(HugePages pages) {
  switch (pages) {
    case HugePages::kAuto:
      return "auto";
    case HugePages::kNever:
      return "never";
    case HugePages::k2MiB:
      return "2MiB";
  }
  check_failed("a HugePages", __FILE__, __LINE__);
}

std::string_view name(LogLevel level) {
  switch (level) {
    case LogLevel::kTrace:
      return "trace";
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarn:
      return "warn";
    case LogLevel::kError:
      return "error";
  }
  check_failed("a LogLevel", __FILE__, __LINE__);
}

std::uint32_t Origin::line_of(std::string_view key) const {
  const auto found = lines.find(key);
  return found == lines.end() ? line : found->second;
}

std::string Origin::name_of(std::string_view key) const {
  if (section.empty() || key.empty()) return section + std::string(key);
  return section + "." + std::string(key);
}

std::optional<int> TierConfig::gpu() const {
  constexpr std::string_view kBefore = "cuda:";
  if (!device.starts_with(kBefore)) return std::nullopt;
  int ordinal = std::numeric_limits<int>::max();  // of a number too large for one
  const char* end = device.data() + device.size();
  const auto read = std::from_chars(device.data() + kBefore.size(), end, ordinal);
  return read.ec == std::errc::invalid_argument ? std::nullopt : std::optional(ordinal);
}

bool TenantConfig::admits(std::uint32_t uid, std::uint32_t own_uid) const {
  if (uid == 0 || any_uid) return true;
  if (uids.empty()) return uid == own_uid;
  return std::ranges::find(uids, uid) != uids.end();
}

}  // namespace terrace::config
