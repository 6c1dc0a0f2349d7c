// SPDX-License-Identifier: Apache-2.0
// What is given to the supervisor before anybody relies on it (DESIGN decision 8), and when that is safe there.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "front/reactor/engine_loop.h"
#include "front/reactor/reactor.h"
#include "front/reactor/watch.h"
#include "service/descriptor_store.h"
#include "terrace/error.h"

namespace terrace::front {

// The reactor thread's. Where nobody keeps anything, all calls succeed and do nothing.
class Keeper {
 public:
  // What is borrowed outlives it. `loop` is pumped after each call of `then`.
  Keeper(Reactor& reactor, EngineLoop& loop, service::DescriptorStore store)
      : reactor_(reactor), loop_(loop), store_(std::move(store)) {}

  // Whether anything outlives this process.
  bool keeps() const { return store_.keeps(); }
  // As DescriptorStore::store(): for what the daemon does not start without.
  Result<void> require(const std::string& name, int descriptor) { return store_.store(name, descriptor); }
  // Whether it is kept from now on; where not, the log says why.
  bool keep(const std::string& name, int descriptor);
  // It is of no use any more.
  void drop(const std::string& name);
  // `then` runs when the supervisor has what was given to it before this call: at once where nobody keeps anything.
  void when_kept(std::move_only_function<void()> then);

  // Whether messages wait for room in the supervisor's queue: flush() sends them, as far as there is.
  bool pending() const { return store_.pending(); }
  void flush();

 private:
  void start_barrier();
  void barrier_passed();

  Reactor& reactor_;
  EngineLoop& loop_;
  service::DescriptorStore store_;
  Fd barrier_;
  std::unique_ptr<Watch> barrier_watch_;
  std::vector<std::move_only_function<void()>> behind_barrier_;
  std::vector<std::move_only_function<void()>> after_barrier_;
};

}  // namespace terrace::front
