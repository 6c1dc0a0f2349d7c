// SPDX-License-Identifier: Apache-2.0
#include "front/survival/keeper.h"

#include <poll.h>
#include <spdlog/spdlog.h>

#include <utility>

namespace terrace::front {

bool Keeper::keep(const std::string& name, int descriptor) {
  if (!store_.keeps()) return false;
  auto stored = store_.store(name, descriptor);
  if (!stored) spdlog::error("{} will not outlive the daemon: {}", name, stored.error().message);
  return stored.has_value();
}

void Keeper::drop(const std::string& name) {
  if (auto forgotten = store_.forget(name); !forgotten)
    spdlog::warn("{} stays with the supervisor: {}", name, forgotten.error().message);
}

void Keeper::when_kept(std::move_only_function<void()> then) {
  if (!store_.keeps()) return then();
  after_barrier_.push_back(std::move(then));
  if (!barrier_watch_) start_barrier();
}

void Keeper::flush() {
  if (!store_.pending()) return;
  if (const auto flushed = store_.flush(); !flushed)
    spdlog::warn("the supervisor takes nothing: {}", flushed.error().message);
}

void Keeper::start_barrier() {
  auto barrier = store_.barrier();
  if (barrier) {
    barrier_ = std::move(*barrier);
    auto watch = reactor_.watch(barrier_.get(), POLLIN, [this](unsigned) { barrier_passed(); });
    if (watch) {
      barrier_watch_ = std::move(*watch);
      behind_barrier_ = std::exchange(after_barrier_, {});
      return;
    }
  }
  // A supervisor that has gone keeps nothing, and holds nobody up.
  for (auto& then : std::exchange(after_barrier_, {})) then();
}

void Keeper::barrier_passed() {
  reactor_.spend(std::move(barrier_watch_));
  reactor_.spend(std::make_shared<Fd>(std::move(barrier_)));
  for (auto& then : std::exchange(behind_barrier_, {})) then();
  if (!after_barrier_.empty() && !barrier_watch_) start_barrier();
  loop_.pump();
}

}  // namespace terrace::front
