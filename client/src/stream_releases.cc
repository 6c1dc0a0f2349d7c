// SPDX-License-Identifier: Apache-2.0
#include "stream_releases.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <utility>
#include <vector>

namespace terrace::client {
namespace {

// How often pending releases are looked after.
constexpr std::chrono::microseconds kLookPeriod{100};
// A stream may be held up by what its caller has yet to do.
constexpr std::chrono::seconds kAwaitMax{1};

// What a stream held.
struct Point {
  cuda::Stream stream = nullptr;
  cuda::Event event = nullptr;  // null: it is not recorded yet
};

// A lease, or what holds a part of one: it goes with this.
struct Pending {
  cuda::Context context = nullptr;
  LeaseToken token{};
  std::shared_ptr<const void> part{};
  std::vector<Point> points{};  // not passed yet
  std::uint64_t number = 0;     // in the order in which they came
  Pending* next = nullptr;
};

// Never destroyed: the thread runs until the process ends.
struct Queue {
  std::atomic<const cuda::Api*> api{nullptr};
  std::once_flag started;
  std::atomic<Pending*> newest{nullptr};
  std::atomic<std::uint32_t> pushes{0};
  std::atomic<std::uint64_t> numbers{0};    // that were given
  std::atomic<std::uint64_t> all_ended{0};  // below this number
};

Queue& queue() {
  static auto* const the = new Queue;
  return *the;
}

void push(Pending* pending) {
  Queue& all = queue();
  pending->number = all.numbers.fetch_add(1, std::memory_order_acq_rel);
  pending->next = all.newest.load(std::memory_order_relaxed);
  while (!all.newest.compare_exchange_weak(pending->next, pending, std::memory_order_release)) {
  }
  all.pushes.fetch_add(1, std::memory_order_release);
  all.pushes.notify_one();
}

// An event behind what a stream holds now, or which call did not give one.
struct Mark {
  cuda::Event event = nullptr;
  const char* call = nullptr;
  cuda::Status status = cuda::kSuccess;

  template <typename Entry, typename... Arguments>
  bool has(const Entry& entry, Arguments... arguments) {
    call = entry.name();
    status = entry.status(arguments...);
    return status == cuda::kSuccess;
  }
};

// The names that the default streams have beside null: the legacy one's, and the calling thread's own.
constexpr std::uintptr_t kLegacy = 1;
constexpr std::uintptr_t kPerThread = 2;
bool is_default(cuda::Stream stream) { return reinterpret_cast<std::uintptr_t>(stream) <= kPerThread; }

// What is captured runs later, with every launch of its graph: no event of a stream that is being captured ever fires.
void mark_here(const cuda::Api& api, cuda::Stream stream, Mark& mark) {
  cuda::CaptureStatus capturing = cuda::kNotCapturing;
  if (!mark.has(api.stream_is_capturing, stream, &capturing)) return;
  if (capturing != cuda::kNotCapturing) {
    mark.status = cuda::kStreamCaptureUnsupported;
    return;
  }
  if (!mark.has(api.event_create, &mark.event, cuda::kEventDisableTiming)) return;
  if (mark.has(api.event_record, mark.event, stream)) return;
  static_cast<void>(api.event_destroy.status(std::exchange(mark.event, nullptr)));
}

Mark mark(const cuda::Api& api, cuda::Context context, cuda::Stream stream) {
  const cuda::Relaxed relaxed(api);
  Mark made;
  const bool is_contexts = is_default(stream) && context != nullptr;
  if (!is_contexts && !made.has(api.stream_context, stream, &context)) return made;
  if (!made.has(api.context_push, context)) return made;
  mark_here(api, stream, made);
  cuda::Context popped = nullptr;
  static_cast<void>(api.context_pop.status(&popped));
  return made;
}

void forget(const cuda::Api& api, const Point& point) {
  if (point.event != nullptr) static_cast<void>(api.event_destroy.status(point.event));
}

// What the driver refuses to say is asked again: bytes in use are not given away. A lost context runs nothing any more.
bool is_past(const cuda::Api& api, cuda::Context context, Point& point) {
  if (point.event == nullptr) {
    const Mark made = mark(api, context, point.stream);
    point.event = made.event;
    if (made.event == nullptr) return cuda::is_lost(made.status);
  }
  const cuda::Status said = api.event_query.status(point.event);
  return said == cuda::kSuccess || cuda::is_lost(said);
}

// Every stream is marked at the first look, whichever is the last to be passed.
bool is_past(const cuda::Api& api, Pending& pending) {
  std::erase_if(pending.points, [&](Point& point) {
    const bool past = is_past(api, pending.context, point);
    if (past) forget(api, point);
    return past;
  });
  return pending.points.empty();
}

void run(const cuda::Api& api) {
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
  ::pthread_setname_np(::pthread_self(), "terrace-release");
  const cuda::Relaxed relaxed(api);
  std::vector<std::unique_ptr<Pending>> waiting;
  while (true) {
    const std::uint32_t seen = queue().pushes.load(std::memory_order_acquire);
    std::uint64_t all_ended = queue().numbers.load(std::memory_order_acquire);
    for (Pending* each = queue().newest.exchange(nullptr, std::memory_order_acquire); each != nullptr;) {
      Pending* const next = each->next;
      waiting.emplace_back(each);
      each = next;
    }
    std::erase_if(waiting, [&](const std::unique_ptr<Pending>& each) {
      const bool past = is_past(api, *each);
      if (past) release_token(each->token);
      return past;
    });
    for (const std::unique_ptr<Pending>& each : waiting) all_ended = std::min(all_ended, each->number);
    queue().all_ended.store(all_ended, std::memory_order_release);
    if (waiting.empty()) {
      queue().pushes.wait(seen, std::memory_order_acquire);
    } else {
      // Not on the oldest's event: one stream may wait for what another one's release brings.
      std::this_thread::sleep_for(kLookPeriod);
    }
  }
}

Error refusal(const Mark& mark) {
  if (mark.status != cuda::kStreamCaptureUnsupported) return cuda::error_of(mark.call, mark.status);
  return {
      ErrorCode::kFailedPrecondition,
      "the stream is being captured into a graph, which is launched later: release the lease when it is not launched "
      "any more"};
}

// Once what lies in the streams now is recorded, in the calling thread.
Result<void> push_past(Streams streams, std::unique_ptr<Pending> pending) {
  const cuda::Api* const api = cuda::loaded();
  if (api == nullptr) {
    return fail(ErrorCode::kFailedPrecondition,
                "no CUDA driver is loaded in this process: release the lease without a stream");
  }
  for (void* const each : streams) {
    auto* const stream = static_cast<cuda::Stream>(each);
    const Mark made = mark(*api, pending->context, stream);
    if (made.event != nullptr) {
      pending->points.push_back({.stream = stream, .event = made.event});
      continue;
    }
    for (const Point& point : pending->points) forget(*api, point);
    return std::unexpected(refusal(made));
  }
  start_stream_releases(*api);
  push(pending.release());
  return {};
}

}  // namespace

void start_stream_releases(const cuda::Api& api) {
  std::call_once(queue().started, [&] {
    queue().api = &api;
    std::thread([&api] { run(api); }).detach();
  });
}

bool await_passed() {
  const std::uint64_t before = queue().numbers.load(std::memory_order_acquire);
  const auto end = std::chrono::steady_clock::now() + kAwaitMax;
  while (queue().all_ended.load(std::memory_order_acquire) < before) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(kLookPeriod);
  }
  return true;
}

Result<void> release_past(cuda::Context context, Streams streams, LeaseToken token) {
  return push_past(streams, std::make_unique<Pending>(context, token));
}

Result<void> keep_past(cuda::Context context, Streams streams, std::shared_ptr<const void> part) {
  return push_past(streams, std::make_unique<Pending>(context, LeaseToken{}, std::move(part)));
}

void release_past_soon(cuda::Context context, Streams streams, LeaseToken token) noexcept {
  try {
    auto pending = std::make_unique<Pending>(context, token);
    for (void* const each : streams) {
      // By its own name a thread's default stream would be that of the library's thread. The legacy one comes behind
      // it.
      const bool per_thread = reinterpret_cast<std::uintptr_t>(each) == kPerThread;
      void* const stream = per_thread ? reinterpret_cast<void*>(kLegacy) : each;
      pending->points.push_back({.stream = static_cast<cuda::Stream>(stream), .event = nullptr});
    }
    push(pending.release());
  } catch (const std::bad_alloc&) {
    // The lease stays until the session ends: bytes in use are not given away.
    return;
  }
}

}  // namespace terrace::client
