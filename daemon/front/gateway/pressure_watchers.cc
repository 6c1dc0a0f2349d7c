// SPDX-License-Identifier: Apache-2.0
#include "front/gateway/pressure_watchers.h"

#include <utility>

namespace terrace::front {

std::uint64_t PressureWatchers::add(Gateway::PressureWatcher watcher) {
  const std::scoped_lock lock(mutex_);
  watchers_.emplace(++last_, std::move(watcher));
  return last_;
}

void PressureWatchers::remove(std::uint64_t watcher) {
  const std::scoped_lock lock(mutex_);
  watchers_.erase(watcher);
}

void PressureWatchers::tell(std::span<const engine::Pressure> all) {
  if (all.empty()) return;
  const std::scoped_lock lock(mutex_);
  for (const engine::Pressure& pressure : all)
    for (auto& [number, watcher] : watchers_) watcher(pressure);
}

}  // namespace terrace::front
