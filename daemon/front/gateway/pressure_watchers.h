// SPDX-License-Identifier: Apache-2.0
// Who is to hear that a tier passes its high mark.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <span>

#include "engine/engine.h"
#include "front/gateway/gateway.h"

namespace terrace::front {

// Thread-safe: remove() waits for a call in progress.
class PressureWatchers {
 public:
  // The number is remove()'s.
  std::uint64_t add(Gateway::PressureWatcher watcher);
  void remove(std::uint64_t watcher);
  // Reactor thread.
  void tell(std::span<const engine::Pressure> all);

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, Gateway::PressureWatcher> watchers_;
  std::uint64_t last_ = 0;
};

}  // namespace terrace::front
