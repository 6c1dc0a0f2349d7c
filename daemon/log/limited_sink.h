// SPDX-License-Identifier: Apache-2.0
// Every line of the log goes through here, and no kind of them is without a limit: lines are of one kind that differ in
// their numbers alone. So a peer that makes a line for each of its connections does not bury what else is said.
#pragma once

#include <spdlog/sinks/base_sink.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "base/time.h"

namespace terrace::log {

// Of each kind kBurst lines come through, and one more for each kPeriod that has passed. What was left out is counted,
// and told with the next line of the kind, or at a flush() once one may come through again. Lines below `info` have no
// limit. Thread-safe.
class LimitedSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  static constexpr std::uint64_t kBurst = 20;
  static constexpr Duration kPeriod = std::chrono::seconds(30);
  // More kinds at a time are as one.
  static constexpr std::size_t kKindsMax = 256;

  // `clock` outlives the sink. `behind`: where the lines go.
  LimitedSink(const Clock& clock, std::shared_ptr<spdlog::sinks::sink> behind);
  // Tells what was left out.
  ~LimitedSink() override;
  LimitedSink(const LimitedSink&) = delete;
  LimitedSink& operator=(const LimitedSink&) = delete;

 protected:
  void sink_it_(const spdlog::details::log_msg& line) override;
  void flush_() override;
  void set_pattern_(const std::string& pattern) override { behind_->set_pattern(pattern); }
  void set_formatter_(std::unique_ptr<spdlog::formatter> formatter) override {
    behind_->set_formatter(std::move(formatter));
  }

 private:
  struct Kind {
    std::uint64_t allowed = kBurst;
    Time counted{};  // `allowed` is as of then
    std::uint64_t left_out = 0;
    spdlog::level::level_enum level{};
    std::string last;  // of those that were left out
  };

  Kind& kind_of(spdlog::string_view_t text);
  void refill(Kind& kind) const;
  void tell(Kind& kind);
  void pass(spdlog::level::level_enum level, const std::string& text);

  const Clock& clock_;
  std::shared_ptr<spdlog::sinks::sink> behind_;
  std::unordered_map<std::string, Kind> kinds_;  // by the text without its numbers
};

}  // namespace terrace::log
