// SPDX-License-Identifier: Apache-2.0
#include "log/limited_sink.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace terrace::log {
namespace {

constexpr const char* kName = "terraced";

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::string without_numbers(spdlog::string_view_t text) {
  std::string kept;
  for (const char c : text)
    if (!is_digit(c))
      kept += c;
    else if (kept.empty() || kept.back() != '#')
      kept += '#';
  return kept;
}

}  // namespace

LimitedSink::LimitedSink(const Clock& clock, std::shared_ptr<spdlog::sinks::sink> behind)
    : clock_(clock), behind_(std::move(behind)) {}

LimitedSink::~LimitedSink() {
  for (auto& [text, kind] : kinds_)
    if (kind.left_out > 0) tell(kind);
  behind_->flush();
}

void LimitedSink::sink_it_(const spdlog::details::log_msg& line) {
  if (line.level < spdlog::level::info) return behind_->log(line);
  Kind& kind = kind_of(line.payload);
  refill(kind);
  if (kind.allowed == 0) {
    ++kind.left_out;
    kind.level = line.level;
    kind.last.assign(line.payload.data(), line.payload.size());
    return;
  }
  --kind.allowed;
  if (kind.left_out == 0) return behind_->log(line);
  pass(line.level,
       fmt::format("{} ({} lines like it were left out before)",
                   std::string_view(line.payload.data(), line.payload.size()), std::exchange(kind.left_out, 0)));
}

// What has been quiet for so long that all is allowed again is forgotten.
void LimitedSink::flush_() {
  for (auto& [text, kind] : kinds_) {
    refill(kind);
    if (kind.left_out == 0 || kind.allowed == 0) continue;
    --kind.allowed;
    tell(kind);
  }
  std::erase_if(kinds_, [](const auto& entry) { return entry.second.allowed == kBurst; });
  behind_->flush();
}

LimitedSink::Kind& LimitedSink::kind_of(spdlog::string_view_t text) {
  std::string key = without_numbers(text);
  if (kinds_.size() >= kKindsMax && !kinds_.contains(key)) key.clear();
  const auto [at, added] = kinds_.try_emplace(std::move(key));
  if (added) at->second.counted = clock_.now();
  return at->second;
}

void LimitedSink::refill(Kind& kind) const {
  const auto periods = static_cast<std::uint64_t>(std::max<std::int64_t>((clock_.now() - kind.counted) / kPeriod, 0));
  if (periods == 0) return;
  kind.allowed = std::min(kind.allowed + periods, kBurst);
  kind.counted = clock_.now();
}

void LimitedSink::tell(Kind& kind) {
  const std::uint64_t left_out = std::exchange(kind.left_out, 0);
  pass(kind.level, fmt::format("{} lines were left out like this one: {}", left_out, kind.last));
}

void LimitedSink::pass(spdlog::level::level_enum level, const std::string& text) {
  behind_->log(spdlog::details::log_msg(kName, level, text));
}

}  // namespace terrace::log
