// SPDX-License-Identifier: Apache-2.0
// A gateway whose answers a test writes: a thread in the reactor's place, and memory in the segments'.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "front/gateway/gateway.h"

namespace terrace::front {

class ScriptedGateway final : public Gateway {
 public:
  using Script = std::function<Result<engine::ReplyBody>(const engine::Request&)>;

  ScriptedGateway() : memory(4 << 20), thread_([this] { loop(); }) { facts_.version = "9.9.9"; }
  ~ScriptedGateway() override {
    run([this] { stop_ = true; });
    thread_.join();
  }

  // Answers every request; runs on the reactor thread. Set before calls come.
  Script script = [](const engine::Request&) -> Result<engine::ReplyBody> { return engine::Done{}; };
  // Requests for which this says true are refused as a full queue refuses them, on the caller's thread.
  std::function<bool(const engine::Request&)> full = [](const engine::Request&) { return false; };
  // Requests for which this says true wait for cancel(), and are then answered by the script all the same.
  std::function<bool(const engine::Request&)> hold = [](const engine::Request&) { return false; };
  Token token{1, 2, 3};
  SessionId session{7};
  std::vector<std::byte> memory;  // what address() gives out
  bool session_alive = true;      // reactor thread only

  RequestId post(engine::Request request, Answer answer) override {
    const std::unique_lock lock(mutex_);
    request.id = RequestId{++last_};
    const RequestId id = request.id;
    if (full(request)) {
      refused_.push_back(request.body.index());
      answer({id, fail(ErrorCode::kResourceExhausted, "full")});
      return id;
    }
    posted_.push_back(request);
    changed_.notify_all();
    auto job = [this, request, answer = std::move(answer)]() mutable {
      auto result = script(request);
      answer({request.id, std::move(result)});
    };
    if (hold(request)) {
      held_.emplace_back(id, std::move(job));
    } else {
      jobs_.push_back(std::move(job));
    }
    return id;
  }
  void cancel(RequestId id) override {
    const std::unique_lock lock(mutex_);
    for (auto& [held, job] : held_)
      if (held == id) jobs_.push_back(std::move(job));
    std::erase_if(held_, [&](const auto& held) { return held.first == id; });
    changed_.notify_all();
  }
  void open(const Peer& peer, engine::OpenSession request, Time, OpenAnswer answer) override {
    const std::unique_lock lock(mutex_);
    opened_.push_back(peer);
    changed_.notify_all();
    jobs_.push_back([this, answer = std::move(answer), guarantees = request.guarantees]() mutable {
      Opened opened{session, token, {}};
      for (const auto& guarantee : guarantees) opened.places.push_back({guarantee.place, 64, guarantee.bytes});
      answer(std::move(opened));
    });
  }
  Result<SessionId> authenticate(const Token& shown, const Peer&) override {
    if (shown != token) return fail(ErrorCode::kUnauthenticated, "the token is not of an open session");
    return session;
  }
  std::uint64_t watch(PressureWatcher watcher) override {
    const std::unique_lock lock(mutex_);
    watchers_.emplace_back(std::move(watcher));
    return watchers_.size();
  }
  void unwatch(std::uint64_t number) override {
    const std::unique_lock lock(mutex_);
    watchers_[number - 1] = nullptr;
  }
  bool run(std::move_only_function<void()> job) override {
    const std::unique_lock lock(mutex_);
    jobs_.push_back(std::move(job));
    changed_.notify_all();
    return true;
  }
  Time now() const override { return clock_.now(); }
  const NodeFacts& facts() const override { return facts_; }
  std::byte* address(SessionId, const engine::Placement& placement) override {
    return session_alive ? memory.data() + placement.offset : nullptr;
  }

  // Tells all watchers.
  void press(const engine::Pressure& pressure) {
    run([this, pressure] {
      for (auto& watcher : watchers_)
        if (watcher) watcher(pressure);
    });
  }
  // Waits, at most a minute, until what was posted, refused and opened satisfies `condition`.
  template <typename Condition>
  bool wait_for(Condition condition) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(60), [&] { return condition(); });
  }
  // Of the accepted requests, those with this body; call under wait_for or when nothing is under way.
  template <typename Body>
  std::size_t count() const {
    std::size_t sum = 0;
    for (const auto& request : posted_) sum += std::holds_alternative<Body>(request.body);
    return sum;
  }
  // The last of them; there must be one.
  template <typename Body>
  Body last() const {
    for (auto request = posted_.rbegin(); request != posted_.rend(); ++request)
      if (const Body* body = std::get_if<Body>(&request->body)) return *body;
    TERRACE_CHECK(false);
  }
  std::size_t refused() const { return refused_.size(); }
  const std::vector<Peer>& opened() const { return opened_; }

 private:
  void loop() {
    std::unique_lock lock(mutex_);
    while (!stop_) {
      changed_.wait_for(lock, std::chrono::milliseconds(10), [&] { return !jobs_.empty(); });
      while (!jobs_.empty()) {
        auto job = std::move(jobs_.front());
        jobs_.pop_front();
        lock.unlock();
        job();
        lock.lock();
      }
    }
  }

  const MonotonicClock clock_;
  NodeFacts facts_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::move_only_function<void()>> jobs_;
  std::vector<std::pair<RequestId, std::move_only_function<void()>>> held_;
  std::vector<engine::Request> posted_;
  std::vector<std::size_t> refused_;
  std::vector<Peer> opened_;
  std::vector<PressureWatcher> watchers_;
  std::uint64_t last_ = 0;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace terrace::front
