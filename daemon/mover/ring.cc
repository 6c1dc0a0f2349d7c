// SPDX-License-Identifier: Apache-2.0
#include "mover/ring.h"

#include <fmt/format.h>
#include <liburing.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace terrace::mover {
namespace {

// Completions of I/O carry the address of a Completion, which is even; those of polls this bit; those of cancellations
// nothing at all.
constexpr std::uint64_t kPollBit = 1;
constexpr unsigned kCompletionsMax = 32768;  // the kernel's own bound
constexpr int kSubmitTriesMax = 1000;
constexpr unsigned kSubmittedEarly = 8;  // submissions that do not wait for the round's end
// Of kernel 6.15, which older headers lack: a wait that is not counted as one for a disk.
constexpr unsigned kFeatureNoIoWait = 1U << 17;
constexpr unsigned kEnterNoIoWait = 1U << 7;

constexpr std::uint64_t poll_name(std::uint32_t index, std::uint32_t generation) {
  return (std::uint64_t{generation} << 32) | (std::uint64_t{index} << 1) | kPollBit;
}
constexpr std::uint32_t index_of(std::uint64_t name) { return static_cast<std::uint32_t>(name) >> 1; }
constexpr std::uint32_t generation_of(std::uint64_t name) { return static_cast<std::uint32_t>(name >> 32); }

// The sysctl's value; 0 where the kernel has none.
int io_uring_disabled() {
  int value = 0;
  if (std::FILE* file = std::fopen("/proc/sys/kernel/io_uring_disabled", "re")) {
    if (std::fscanf(file, "%d", &value) != 1) value = 0;  // NOLINT(cert-err34-c): the kernel writes a number
    std::fclose(file);
  }
  return value;
}

std::unexpected<Error> refused(int error) {
  const int disabled = io_uring_disabled();
  const char* system = std::strerror(error);
  if (disabled != 0) {
    return fail(
        ErrorCode::kUnavailable,
        fmt::format("io_uring is forbidden here ({}): the sysctl kernel.io_uring_disabled is {}; set it to 0, or "
                    "with 1 put the daemon's group into kernel.io_uring_group",
                    system, disabled),
        error);
  }
  if (error == EPERM || error == ENOSYS) {
    return fail(
        ErrorCode::kUnavailable,
        fmt::format("io_uring is not there ({}): a seccomp filter (as containers have) must allow io_uring_setup, "
                    "io_uring_enter and io_uring_register, and the kernel must be 5.15 or newer",
                    system),
        error);
  }
  return fail(
      error == ENOMEM || error == EMFILE || error == ENFILE ? ErrorCode::kResourceExhausted : ErrorCode::kInternal,
      fmt::format("creating the io_uring: {}", system), error);
}

__kernel_timespec to_timespec(Duration timeout) {
  const auto nanoseconds = std::max<std::int64_t>(timeout.count(), 0);
  return {.tv_sec = nanoseconds / 1'000'000'000, .tv_nsec = nanoseconds % 1'000'000'000};
}

}  // namespace

void Ring::Delete::operator()(io_uring* ring) const {
  io_uring_queue_exit(ring);
  delete ring;
}

Ring::Ring(const Options& options) : options_(options), polls_(options.polls_max) {
  free_polls_.reserve(options.polls_max);
  for (std::uint32_t index = options.polls_max; index > 0; --index) free_polls_.push_back(index - 1);
}

Ring::~Ring() = default;

Result<std::unique_ptr<Ring>> Ring::create(const Options& options) {
  TERRACE_CHECK(options.entries > 0 && options.polls_max < (1U << 31));
  std::unique_ptr<Ring> ring(new Ring(options));
  if (auto done = ring->set_up(); !done) return std::unexpected(std::move(done.error()));
  return ring;
}

// The completion queue holds all that can be outstanding at once, cancellations too, so that it never overflows.
Result<void> Ring::set_up() {
  constexpr unsigned kDeferred =
      IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_R_DISABLED;
  const unsigned completions = std::bit_ceil(2 * options_.polls_max + options_.io_max + options_.entries);
  int result = -EINVAL;
  for (const unsigned flags : {kDeferred, 0U}) {
    io_uring_params parameters{};
    parameters.flags = flags | IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP;
    parameters.cq_entries = std::min(completions, kCompletionsMax);
    auto made = std::make_unique<io_uring>();
    result = io_uring_queue_init_params(options_.entries, made.get(), &parameters);
    if (result == -EINVAL) continue;  // a kernel before 6.1 does not know the first flags
    if (result < 0) break;
    ring_.reset(made.release());
    deferred_ = flags != 0;
    enabled_ = flags == 0;
    waits_unseen_ = (parameters.features & kFeatureNoIoWait) != 0;
    return {};
  }
  return refused(-result);
}

// A ring with one issuer belongs to the thread that enables it: the reactor, though another created it.
void Ring::enable() {
  if (enabled_) return;
  // liburing 2.3's library lacks the io_uring_enable_rings() of its header.
  TERRACE_CHECK(syscall(SYS_io_uring_register, ring_->ring_fd, IORING_REGISTER_ENABLE_RINGS, nullptr, 0) == 0);
  enabled_ = true;
}

io_uring_sqe* Ring::next_entry() {
  for (int tries = 0; tries < kSubmitTriesMax; ++tries) {
    if (io_uring_sqe* entry = io_uring_get_sqe(ring_.get())) return entry;
    enable();
    const int result = io_uring_submit(ring_.get());
    TERRACE_CHECK(result >= 0 || result == -EINTR || result == -EAGAIN || result == -EBUSY);
    if (result <= 0) sched_yield();
  }
  check_failed("the kernel takes submissions", __FILE__, __LINE__);
}

void Ring::set_files(std::span<const int> descriptors) {
  TERRACE_CHECK(files_.empty());
  files_.assign(descriptors.begin(), descriptors.end());
  files_registered_ =
      !files_.empty() && io_uring_register_files(ring_.get(), files_.data(), static_cast<unsigned>(files_.size())) == 0;
}

bool Ring::reserve_buffers(unsigned count) { return io_uring_register_buffers_sparse(ring_.get(), count) == 0; }

bool Ring::set_buffer(int slot, std::span<std::byte> memory) {
  const iovec part{.iov_base = memory.data(), .iov_len = memory.size()};
  return io_uring_register_buffers_update_tag(ring_.get(), static_cast<unsigned>(slot), &part, nullptr, 1) == 1;
}

void Ring::read(std::size_t file, std::span<std::byte> buffer, std::uint64_t offset, Completion& completion, int slot) {
  io_uring_sqe* entry = next_entry();
  const auto bytes = static_cast<unsigned>(buffer.size());
  if (slot == kUnregistered) {
    io_uring_prep_read(entry, -1, buffer.data(), bytes, offset);
  } else {
    io_uring_prep_read_fixed(entry, -1, buffer.data(), bytes, offset, slot);
  }
  begin_io(entry, file, completion);
}

void Ring::write(std::size_t file, std::span<const std::byte> buffer, std::uint64_t offset, Completion& completion,
                 int slot) {
  io_uring_sqe* entry = next_entry();
  const auto bytes = static_cast<unsigned>(buffer.size());
  if (slot == kUnregistered) {
    io_uring_prep_write(entry, -1, buffer.data(), bytes, offset);
  } else {
    io_uring_prep_write_fixed(entry, -1, buffer.data(), bytes, offset, slot);
  }
  begin_io(entry, file, completion);
}

void Ring::begin_io(io_uring_sqe* entry, std::size_t file, Completion& completion) {
  TERRACE_CHECK(file < files_.size());
  entry->fd = files_registered_ ? static_cast<int>(file) : files_[file];
  if (files_registered_) entry->flags |= IOSQE_FIXED_FILE;
  io_uring_sqe_set_data(entry, &completion);
  ++io_in_flight_;
}

Result<PollId> Ring::poll(int descriptor, unsigned events, Completion& completion) {
  if (free_polls_.empty()) {
    return fail(ErrorCode::kResourceExhausted,
                fmt::format("{} descriptors are watched already, which is the ring's bound", options_.polls_max));
  }
  const std::uint32_t index = free_polls_.back();
  free_polls_.pop_back();
  Poll& poll = polls_[index];
  poll.completion = &completion;
  poll.descriptor = descriptor;
  poll.events = events;
  arm(index);
  return PollId{poll_name(index, poll.generation)};
}

// One shot each time, armed again after its call: unlike a multishot poll, which reports changes, it also reports what
// its owner left unread.
void Ring::arm(std::uint32_t index) {
  Poll& poll = polls_[index];
  io_uring_sqe* entry = next_entry();
  io_uring_prep_poll_add(entry, poll.descriptor, poll.events);
  io_uring_sqe_set_data64(entry, poll_name(index, poll.generation));
  poll.armed = true;
}

void Ring::release(std::uint32_t index) {
  Poll& poll = polls_[index];
  poll = Poll{.generation = poll.generation + 1};
  free_polls_.push_back(index);
}

void Ring::unpoll(PollId poll_id) {
  const auto name = static_cast<std::uint64_t>(poll_id);
  if (poll_id == PollId::kNone) return;
  Poll& poll = polls_[index_of(name)];
  if (poll.generation != generation_of(name) || poll.completion == nullptr) return;
  poll.completion = nullptr;
  if (!poll.armed) return;  // inside its own call: dispatch_poll() releases it
  io_uring_sqe* entry = next_entry();
  io_uring_prep_cancel64(entry, name, 0);
  io_uring_sqe_set_data64(entry, 0);
}

void Ring::dispatch_poll(std::uint64_t user_data, int result) {
  const std::uint32_t index = index_of(user_data);
  Poll& poll = polls_[index];
  TERRACE_CHECK(poll.generation == generation_of(user_data));
  poll.armed = false;
  Completion* completion = poll.completion;
  if (completion == nullptr || result < 0) {
    release(index);
    if (completion != nullptr) completion->completed(result, false);
    return;
  }
  completion->completed(result, true);
  if (poll.completion == nullptr) {
    release(index);
  } else {
    arm(index);
  }
}

void Ring::dispatch(std::uint64_t user_data, int result) {
  if (user_data == 0) return;
  if ((user_data & kPollBit) != 0) {
    dispatch_poll(user_data, result);
    return;
  }
  --io_in_flight_;
  reinterpret_cast<Completion*>(user_data)->completed(result, false);  // NOLINT(performance-no-int-to-ptr): as given
}

void Ring::later(Later& job, std::uint64_t bytes) {
  job.next_ = nullptr;
  job.bytes_ = bytes;
  if (first_later_ == nullptr) {
    first_later_ = &job;
  } else {
    last_later_->next_ = &job;
  }
  last_later_ = &job;
}

// What the disks have to do goes to them first. What completes meanwhile is looked at in the next round, in time.
void Ring::run_later() {
  if (first_later_ != nullptr && io_uring_sq_ready(ring_.get()) > 0) (void)io_uring_submit(ring_.get());
  for (std::uint64_t bytes = 0; first_later_ != nullptr && bytes < kLaterBytesMax;) {
    Later& job = *std::exchange(first_later_, first_later_->next_);
    bytes += job.bytes_;
    job.run_later();
    submit_early();
  }
}

// A disk that completed all of its queue at once has nothing to do until then.
void Ring::submit_early() {
  if (io_uring_sq_ready(ring_.get()) >= kSubmittedEarly) (void)io_uring_submit(ring_.get());
}

// Where completions are deferred the kernel says that some wait for their turn; else they appear by themselves.
bool Ring::has_work() const {
  const unsigned flags = IO_URING_READ_ONCE(*ring_->sq.kflags);
  return first_later_ != nullptr || io_uring_sq_ready(ring_.get()) > 0 || io_uring_cq_ready(ring_.get()) > 0 ||
         (flags & (IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW)) != 0;
}

int Ring::wait(Duration timeout) {
  if (first_later_ != nullptr) return io_uring_submit_and_get_events(ring_.get());
  if (waits_unseen_ && io_in_flight_ == 0) return wait_unseen(timeout);
  io_uring_cqe* ready = nullptr;
  __kernel_timespec limit = to_timespec(timeout);
  return io_uring_submit_and_wait_timeout(ring_.get(), &ready, 1, timeout == Duration::max() ? nullptr : &limit,
                                          nullptr);
}

// To the kernel each wait in a ring is one for a disk, that for descriptors too: an idle daemon would keep the
// machine's I/O wait, and the pressure of its disks, at all of a processor.
int Ring::wait_unseen(Duration timeout) {
  if (io_uring_sq_ready(ring_.get()) > 0) {
    if (const int submitted = io_uring_submit(ring_.get()); submitted < 0) return submitted;
  }
  // Where the kernel had no memory for all of it, the rest is for the next round, as what is ready is.
  if (io_uring_sq_ready(ring_.get()) > 0 || io_uring_cq_ready(ring_.get()) > 0) return 0;
  const __kernel_timespec limit = to_timespec(timeout);
  io_uring_getevents_arg how{};
  how.sigmask_sz = _NSIG / 8;
  how.ts = timeout == Duration::max() ? 0 : reinterpret_cast<std::uint64_t>(&limit);
  return io_uring_enter2(static_cast<unsigned>(ring_->enter_ring_fd), 0, 1,
                         IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG | kEnterNoIoWait,
                         reinterpret_cast<sigset_t*>(&how), sizeof how);
}

Result<std::size_t> Ring::run_once(Duration timeout) {
  TERRACE_CHECK(!dispatching_);
  enable();
  if (timeout == Duration::zero() && !has_work()) return 0;
  const int waited = wait(timeout);
  if (waited < 0 && waited != -ETIME && waited != -EINTR && waited != -EAGAIN && waited != -EBUSY) {
    return fail(ErrorCode::kInternal, fmt::format("waiting on the io_uring: {}", std::strerror(-waited)), -waited);
  }
  // What handlers submit may complete at once: it waits for the next round, so that this one ends.
  const std::size_t count = io_uring_cq_ready(ring_.get());
  dispatching_ = true;
  for (std::size_t done = 0; done < count; ++done) {
    io_uring_cqe* completion = nullptr;
    if (io_uring_peek_cqe(ring_.get(), &completion) != 0) break;
    const std::uint64_t user_data = completion->user_data;
    const int result = completion->res;
    io_uring_cqe_seen(ring_.get(), completion);
    dispatch(user_data, result);
    submit_early();
  }
  run_later();
  dispatching_ = false;
  return count;
}

}  // namespace terrace::mover
