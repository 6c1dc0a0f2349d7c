// SPDX-License-Identifier: Apache-2.0
// The threads that copy, checksum and prefault, so that the reactor does not have to.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "terrace/error.h"

namespace terrace::mover {

// Something to be done away from the reactor. Its owner keeps it until done() was called; it can then be submitted
// again.
class Job {
 public:
  virtual ~Job() = default;
  // On a worker.
  virtual void run() = 0;
  // On the reactor, from Workers::collect(), after run() has returned.
  virtual void done() = 0;

 private:
  friend class Workers;
  Job* next_ = nullptr;
};

// A fixed number of threads and three queues. submit(), collect() and wait_idle() are the reactor's; the queues are
// intrusive, so their bound is the number of jobs that their owners have.
class Workers {
 public:
  enum class Lane : unsigned char {
    kCopy,     // a chunk at a time: copies and checksums
    kSegment,  // slow: a segment is made or given up; one thread, in order
    kPin,      // slow: memory is pinned, several pieces at once; nobody does it before start_pinners()
  };
  static constexpr unsigned kCopiersMax = 64;
  static constexpr unsigned kPinnersMax = 8;

  struct Options {
    unsigned copiers = 0;  // threads of Lane::kCopy, at most kCopiersMax; 0: half the processors, at least 1
    // Processors of each NUMA node. Where there are several nodes, copiers are pinned to them in turn.
    std::vector<std::vector<unsigned>> node_processors{};
    unsigned pinners = 0;  // threads of Lane::kPin, at most kPinnersMax; 0: as many as they have processors
    // Processors near the memory that is pinned, to which those threads are bound; empty: they run anywhere.
    std::vector<unsigned> pinner_processors{};
  };
  // kResourceExhausted when the system gives no thread or no eventfd.
  static Result<std::unique_ptr<Workers>> create(const Options& options);
  // Waits for what runs; what is queued is dropped.
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // Where there is memory to pin, since without a GPU those threads have nothing to do; again: nothing happens. Errors
  // as create().
  Result<void> start_pinners();

  void submit(Job& job, Lane lane);
  // Readable while there are jobs to collect.
  int descriptor() const { return wake_.get(); }
  // Calls done() of every job that has run, in the order in which they finished; how many there were.
  std::size_t collect();
  // Blocks until every submitted job has run; done() is left to collect().
  void wait_idle();
  unsigned copiers() const { return copiers_; }
  unsigned pinners() const { return pinners_; }

 private:
  struct Queue {
    Job* first = nullptr;
    Job* last = nullptr;
    std::condition_variable ready;
    void push(Job& job);
    Job* pop();
  };

  explicit Workers(const Options& options) : options_(options) {}
  Result<void> start();
  // A thread more, bound to these processors if there are any.
  Result<void> start_thread(Queue& queue, const char* name, const std::vector<unsigned>& processors);
  void work(Queue& queue);

  std::mutex mutex_;  // guards the queues, unfinished_ and stop_
  Queue copies_;
  Queue segments_;
  Queue pins_;
  Queue finished_;              // its `ready` wakes wait_idle()
  std::size_t unfinished_ = 0;  // submitted, and not yet run
  bool stop_ = false;
  Fd wake_;
  const Options options_;
  unsigned copiers_ = 0;
  unsigned pinners_ = 0;
  std::vector<std::jthread> threads_;
};

}  // namespace terrace::mover
