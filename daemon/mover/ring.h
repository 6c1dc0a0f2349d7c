// SPDX-License-Identifier: Apache-2.0
// The io_uring behind the reactor: file I/O and readiness of descriptors complete in one wait (DESIGN decision 2).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/time.h"
#include "terrace/error.h"

struct io_uring;      // NOLINT(readability-identifier-naming): liburing's
struct io_uring_sqe;  // NOLINT(readability-identifier-naming)

namespace terrace::mover {

// Who is told that something completed; called from run_once() only.
class Completion {
 public:
  virtual ~Completion() = default;
  // `result`: what the operation gave (bytes of I/O; ready events of a poll), or -errno. `more`: it stands and will
  // complete again (a poll); false: this was its last call.
  virtual void completed(int result, bool more) = 0;
};

// What may wait until everything that completed in a round has been told, and what follows from it is with the kernel.
class Later {
 public:
  virtual ~Later() = default;
  // On the ring's thread, once after each Ring::later().
  virtual void run_later() = 0;

 private:
  friend class Ring;
  Later* next_ = nullptr;
  std::uint64_t bytes_ = 0;
};

// A standing poll; no two polls of a ring have the same.
enum class PollId : std::uint64_t { kNone = 0 };

// One ring. Create it anywhere; all other calls come from the thread that made the first run_once() (the reactor), or
// before it. What waits for submission goes to the kernel with the next run_once(), or before: within one, a few at a
// time, and when the queue is full. Nothing is allocated after creation.
class Ring {
 public:
  struct Options {
    unsigned entries = 256;     // submissions gathered between two waits; more are submitted at once
    unsigned polls_max = 4096;  // descriptors watched at once
    unsigned io_max = 256;      // reads and writes in flight at once (the caller's bound, which sizes the queues)
  };
  // kUnavailable names what forbids io_uring: the sysctl kernel.io_uring_disabled, or a seccomp filter.
  static Result<std::unique_ptr<Ring>> create(const Options& options);
  // Nobody is called any more. I/O in flight may still write to its buffers until the kernel has let go of the ring.
  ~Ring();
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  // The files of read() and write(), by their index here from then on; borrowed. They are registered if the kernel
  // lets us. Once, before the first I/O.
  void set_files(std::span<const int> descriptors);
  bool files_registered() const { return files_registered_; }

  // Makes room for registered buffers. Once; false where the kernel has none.
  bool reserve_buffers(unsigned count);
  // Registers `memory`, whose pages stay pinned, as number `slot`; an empty one gives the slot's up. False where the
  // kernel refuses (memlock), with nothing changed.
  bool set_buffer(int slot, std::span<std::byte> memory);
  static constexpr int kUnregistered = -1;

  // I/O at an offset of a file. `buffer` and `completion` must stay until `completion` was called, once. Results may
  // be short. `slot`: of the registered buffer in which `buffer` lies.
  void read(std::size_t file, std::span<std::byte> buffer, std::uint64_t offset, Completion& completion,
            int slot = kUnregistered);
  void write(std::size_t file, std::span<const std::byte> buffer, std::uint64_t offset, Completion& completion,
             int slot = kUnregistered);

  // Calls `completion` with the ready events (POLLIN...) whenever `descriptor` is ready for one of `events`, as long as
  // it is (level-triggered), until unpoll(); -errno with more == false ends it. POLLHUP and POLLERR are always
  // reported. kResourceExhausted when polls_max stand.
  Result<PollId> poll(int descriptor, unsigned events, Completion& completion);
  // `completion` is not called again, from now on, also for what is ready already; both it and the descriptor may go.
  // Allowed inside completed(). A poll that ended by itself (more == false), or kNone, is nothing to take back.
  void unpoll(PollId poll);

  // Work of the CPU's own on `bytes` of memory that completed() would do, and which is not to keep the devices waiting:
  // it is done at the end of the round, after what the round's completions asked for was submitted, first come first.
  // A round does kLaterBytesMax of it, and the next one goes on before it would wait. From inside a round, or before
  // the next one. `job` stays until then, and comes once at a time.
  void later(Later& job, std::uint64_t bytes);
  static constexpr std::uint64_t kLaterBytesMax = 512 * 1024;  // about 80 microseconds of checksums

  // Submits, waits until something completes, `timeout` has passed (zero: does not wait; Duration::max(): for ever) or
  // a signal came, and calls what completed, then what was left for later; does not wait while some of that is left
  // over. Without a timeout and without has_work() no kernel is asked. How many completions there were. Errors:
  // kInternal with system_error: the ring is of no more use.
  Result<std::size_t> run_once(Duration timeout);

  // Whether run_once() has anything to do now: entries to submit, completions, or work left for later. Asks no kernel.
  bool has_work() const;

  // Reads and writes whose completion has not been called.
  std::size_t io_in_flight() const { return io_in_flight_; }
  // Completions run on this thread only inside run_once (IORING_SETUP_DEFER_TASKRUN); older kernels interrupt instead.
  bool deferred() const { return deferred_; }

 private:
  struct Poll {
    Completion* completion = nullptr;  // null: given back; its last completion is not there yet
    int descriptor = -1;
    std::uint32_t events = 0;
    std::uint32_t generation = 0;
    bool armed = false;  // the kernel has it, or will with the next submission
  };
  struct Delete {
    void operator()(io_uring* ring) const;
  };

  explicit Ring(const Options& options);
  Result<void> set_up();
  void enable();
  io_uring_sqe* next_entry();
  void begin_io(io_uring_sqe* entry, std::size_t file, Completion& completion);
  void arm(std::uint32_t index);
  void release(std::uint32_t index);
  void dispatch(std::uint64_t user_data, int result);
  void dispatch_poll(std::uint64_t user_data, int result);
  int wait(Duration timeout);
  int wait_unseen(Duration timeout);
  void submit_early();
  void run_later();

  Options options_;
  std::unique_ptr<io_uring, Delete> ring_;
  bool deferred_ = false;
  bool enabled_ = true;
  bool dispatching_ = false;
  bool files_registered_ = false;
  bool waits_unseen_ = false;  // the kernel can leave a wait that is for no disk out of its counts
  std::vector<int> files_;
  std::vector<Poll> polls_;
  std::vector<std::uint32_t> free_polls_;
  std::size_t io_in_flight_ = 0;
  Later* first_later_ = nullptr;
  Later* last_later_ = nullptr;
};

}  // namespace terrace::mover
