// SPDX-License-Identifier: Apache-2.0
#include "stream_releases.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <deque>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

namespace terrace::client {
namespace {

// How often pending releases are looked after.
constexpr std::chrono::microseconds kLookPeriod{100};

struct Pending {
  LeaseToken token;
  cuda::Context context = nullptr;
  cuda::Stream stream = nullptr;
  cuda::Event event = nullptr;  // null: the point is not recorded yet
  Pending* next = nullptr;
};

// Never destroyed: the thread runs until the process ends.
struct Queue {
  std::atomic<const cuda::Api*> api{nullptr};
  std::once_flag started;
  std::atomic<Pending*> newest{nullptr};
  std::atomic<std::uint32_t> pushes{0};
};

Queue& queue() {
  static auto* const the = new Queue;
  return *the;
}

void push(Pending* pending) {
  Queue& all = queue();
  pending->next = all.newest.load(std::memory_order_relaxed);
  while (!all.newest.compare_exchange_weak(pending->next, pending, std::memory_order_release)) {
  }
  all.pushes.fetch_add(1, std::memory_order_release);
  all.pushes.notify_one();
}

Result<cuda::Event> mark(const cuda::Api& api, cuda::Context context, cuda::Stream stream) {
  const cuda::Current current(api, context);
  if (!current.result()) return std::unexpected(current.result().error());
  cuda::Event event = nullptr;
  if (auto made = api.event_create(&event, cuda::kEventDisableTiming); !made) return std::unexpected(made.error());
  if (auto recorded = api.event_record(event, stream); !recorded) {
    static_cast<void>(api.event_destroy.status(event));
    return std::unexpected(recorded.error());
  }
  return event;
}

void finish(const cuda::Api& api, const Pending& pending) {
  if (pending.event != nullptr) static_cast<void>(api.event_destroy.status(pending.event));
  release_token(pending.token);
}

// A device that fails is past everything: it runs no more.
bool is_past(const cuda::Api& api, const Pending& pending) {
  return pending.event == nullptr || api.event_query.status(pending.event) != cuda::kNotReady;
}

void run(const cuda::Api& api) {
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
  ::pthread_setname_np(::pthread_self(), "terrace-release");
  std::deque<std::unique_ptr<Pending>> waiting;
  while (true) {
    const std::uint32_t seen = queue().pushes.load(std::memory_order_acquire);
    std::deque<std::unique_ptr<Pending>> fresh;
    for (Pending* each = queue().newest.exchange(nullptr, std::memory_order_acquire); each != nullptr;) {
      Pending* const next = each->next;
      fresh.emplace_front(each);
      each = next;
    }
    for (auto& each : fresh) {
      if (each->event == nullptr) each->event = mark(api, each->context, each->stream).value_or(nullptr);
      waiting.push_back(std::move(each));
    }
    std::erase_if(waiting, [&](const std::unique_ptr<Pending>& each) {
      const bool past = is_past(api, *each);
      if (past) finish(api, *each);
      return past;
    });
    if (waiting.empty()) {
      queue().pushes.wait(seen, std::memory_order_acquire);
    } else {
      // Not on the oldest's event: one stream may wait for what another one's release brings.
      std::this_thread::sleep_for(kLookPeriod);
    }
  }
}

}  // namespace

void start_stream_releases(const cuda::Api& api) {
  std::call_once(queue().started, [&] {
    queue().api = &api;
    std::thread([&api] { run(api); }).detach();
  });
}

Result<void> release_past(cuda::Stream stream, LeaseToken token) {
  const cuda::Api* const api = cuda::loaded();
  if (api == nullptr) {
    return fail(ErrorCode::kFailedPrecondition,
                "no CUDA driver is loaded in this process: release the lease without a stream");
  }
  cuda::Context context = nullptr;
  if (auto asked = api->stream_context(stream, &context); !asked) return asked;
  const Result<cuda::Event> event = mark(*api, context, stream);
  if (!event) return std::unexpected(event.error());
  start_stream_releases(*api);
  push(new Pending{.token = token, .context = context, .stream = stream, .event = *event, .next = nullptr});
  return {};
}

void release_past_soon(cuda::Context context, cuda::Stream stream, LeaseToken token) noexcept {
  auto* pending = new (std::nothrow) Pending{.token = token, .context = context, .stream = stream};
  // Without memory for it the lease stays until the session ends: bytes in use are not given away.
  if (pending != nullptr) push(pending);
}

}  // namespace terrace::client
