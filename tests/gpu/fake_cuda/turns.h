// SPDX-License-Identifier: Apache-2.0
// Streams of one process that take turns: their tasks run one at a time, on one thread, in an order drawn from a seed,
// and no earlier than somebody waits for them. So a wait that was left out shows: what was not waited for has not run.
// Where the process launches and waits in the same order, so do the tasks run.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

namespace terrace::fake_cuda {

class StreamState;

class Turns {
 public:
  using Holds = std::function<bool()>;

  // Null where each stream has a thread of its own.
  static Turns* taken();
  // Streams that are made from now on take turns, for as long as the process is there. Not thread-safe; once.
  static void take(std::uint64_t seed, std::chrono::microseconds patience);

  // The order from now on. patience: after this long without a new task or wait, tasks run though nobody waits, so that
  // who waits in ways that no driver sees gets on. Of streams that hold nothing.
  void start_over(std::uint64_t seed, std::chrono::microseconds patience);

  void add(StreamState* stream);
  void remove(StreamState* stream);
  // A task is new, or an event was reached by another thread than that of the turns.
  void note();
  // Has tasks run until it holds, and no more. wanted: the stream that is waited for; null: several.
  void wait(const StreamState* wanted, const Holds& holds);

 private:
  // What runs while somebody waits for a stream.
  enum class Mood : std::uint8_t { kWanted, kAny, kOthers };
  struct Wait {
    const StreamState* wanted;
    const Holds* holds;
    Mood mood;
    bool done = false;
  };

  Turns(std::uint64_t seed, std::chrono::microseconds patience);
  void run();
  bool is_quiet() const;
  StreamState* choose();
  StreamState* first_for(const StreamState* wanted) const;
  void settle();

  std::mutex mutex_;  // before any stream's or event's
  std::condition_variable changed_;
  std::condition_variable done_;
  std::mt19937_64 random_;
  std::chrono::microseconds patience_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
  std::vector<StreamState*> streams_;
  std::vector<Wait*> waits_;
  StreamState* running_ = nullptr;
  bool idle_ = false;  // nothing is there to be run
};

}  // namespace terrace::fake_cuda
