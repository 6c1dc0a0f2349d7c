// SPDX-License-Identifier: Apache-2.0
#include "stream_releases.h"

#include <pthread.h>

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
  if (!made.has(api.context_push, context)) return made;
  mark_here(api, stream, made);
  cuda::Context popped = nullptr;
  static_cast<void>(api.context_pop.status(&popped));
  return made;
}

void finish(const cuda::Api& api, const Pending& pending) {
  if (pending.event != nullptr) static_cast<void>(api.event_destroy.status(pending.event));
  release_token(pending.token);
}

// What the driver refuses to say is asked again: bytes in use are not given away. A lost context runs nothing any more.
bool is_past(const cuda::Api& api, Pending& pending) {
  if (pending.event == nullptr) {
    const Mark made = mark(api, pending.context, pending.stream);
    pending.event = made.event;
    if (made.event == nullptr) return cuda::is_lost(made.status);
  }
  const cuda::Status said = api.event_query.status(pending.event);
  return said == cuda::kSuccess || cuda::is_lost(said);
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
    for (Pending* each = queue().newest.exchange(nullptr, std::memory_order_acquire); each != nullptr;) {
      Pending* const next = each->next;
      waiting.emplace_back(each);
      each = next;
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
  const Mark made = mark(*api, context, stream);
  if (made.status == cuda::kStreamCaptureUnsupported) {
    return fail(ErrorCode::kFailedPrecondition,
                "the stream is being captured into a graph, which is launched later: release the lease when it is not "
                "launched any more");
  }
  if (made.status != cuda::kSuccess) return std::unexpected(cuda::error_of(made.call, made.status));
  start_stream_releases(*api);
  push(new Pending{.token = token, .context = context, .stream = stream, .event = made.event, .next = nullptr});
  return {};
}

void release_past_soon(cuda::Context context, cuda::Stream stream, LeaseToken token) noexcept {
  auto* pending = new (std::nothrow) Pending{.token = token, .context = context, .stream = stream};
  // Without memory for it the lease stays until the session ends: bytes in use are not given away.
  if (pending != nullptr) push(pending);
}

}  // namespace terrace::client
