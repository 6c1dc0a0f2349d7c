// SPDX-License-Identifier: Apache-2.0
// Connections that were turned away, or closed for what came over them: counted by who and why. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/values/status.h"
#include "terrace/error.h"

namespace terrace::front {

class Refusals {
 public:
  // Of more users and reasons together the rest count as nobody's: RefusalStatus::kOthers.
  static constexpr std::size_t kCountedMax = 64;

  void count(std::uint32_t uid, ErrorCode why) {
    const std::lock_guard lock(mutex_);
    const std::pair key(uid, why);
    const bool is_known = counts_.contains(key) || counts_.size() < kCountedMax;
    ++counts_[is_known ? key : std::pair(engine::RefusalStatus::kOthers, why)];
  }
  std::vector<engine::RefusalStatus> status() const {
    const std::lock_guard lock(mutex_);
    std::vector<engine::RefusalStatus> all;
    for (const auto& [key, count] : counts_) all.push_back({key.first, key.second, count});
    return all;
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::uint32_t, ErrorCode>, std::uint64_t> counts_;
};

}  // namespace terrace::front
