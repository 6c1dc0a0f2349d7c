// SPDX-License-Identifier: Apache-2.0
#include "sessions.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <vector>

#include "session.h"

namespace terrace::client {
namespace {

struct Sessions {
  std::mutex mutex;
  std::vector<Session*> all;
};

// Never destroyed: threads end after static destructors have run.
Sessions& sessions() {
  static auto* const the = [] {
    auto* made = new Sessions;
    // The lock is held across a fork, so that the child finds the list whole.
    ::pthread_atfork([] { sessions().mutex.lock(); }, [] { sessions().mutex.unlock(); },
                     [] {
                       for (Session* session : sessions().all) session->become_forked_child();
                       sessions().mutex.unlock();
                     });
    return made;
  }();
  return *the;
}

}  // namespace

std::uint64_t next_serial() {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

void enlist(Session& session) {
  const std::lock_guard lock(sessions().mutex);
  sessions().all.push_back(&session);
}

void strike_off(Session& session) {
  const std::lock_guard lock(sessions().mutex);
  std::erase(sessions().all, &session);
}

void without_fork(const std::function<void()>& action) {
  const std::lock_guard lock(sessions().mutex);
  action();
}

void with_session(std::uint64_t serial, const std::function<void(Session&)>& visit) {
  const std::lock_guard lock(sessions().mutex);
  const auto found = std::ranges::find(sessions().all, serial, &Session::serial);
  if (found != sessions().all.end()) visit(**found);
}

}  // namespace terrace::client
