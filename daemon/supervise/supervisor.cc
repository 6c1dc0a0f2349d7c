// SPDX-License-Identifier: Apache-2.0
#include "supervise/supervisor.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/fd.h"
#include "service/environment.h"
#include "service/notify_socket.h"
#include "supervise/backoff.h"
#include "supervise/child.h"
#include "supervise/kept_descriptors.h"
#include "supervise/notify_receiver.h"

namespace terrace::supervise {
namespace {

// A child that floods the socket must not keep this loop from its signals, timers and end.
constexpr int kMessagesAtOnce = 64;
// After its death there is no more than its socket's queue held; others of this uid could go on writing.
constexpr int kMessagesAfterDeath = 65536;
// What this process opens for itself and for the start of a child.
constexpr std::size_t kOwnDescriptors = 64;

template <typename... Arguments>
void say(fmt::format_string<Arguments...> text, Arguments&&... arguments) {
  const std::string line = fmt::format(text, std::forward<Arguments>(arguments)...);
  fmt::print(stderr, "terraced supervise: {}\n", line);
}

std::size_t bounded_by_limit(std::size_t store_max) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return store_max;
  const std::size_t usable = limit.rlim_cur > 2 * kOwnDescriptors ? limit.rlim_cur - kOwnDescriptors : kOwnDescriptors;
  if (usable < store_max)
    say("keeps at most {} descriptors, not {}: no more may be open here; raise the limit (ulimit -n)", usable,
        store_max);
  return std::min(store_max, usable);
}

class Supervisor {
 public:
  Supervisor(const Options& options, Fd signals, NotifyReceiver receiver, service::NotifySocket parent)
      : options_(options),
        signals_(std::move(signals)),
        receiver_(std::move(receiver)),
        parent_(std::move(parent)),
        parent_period_(parent_ ? service::watchdog_period_from_environment() : Duration::zero()),
        kept_(bounded_by_limit(options.store_max)),
        backoff_(options.restart_delay_max),
        deadline_(clock_.now()) {}

  // Until an end was asked for and came; the exit status.
  int run() {
    while (!finished_) turn();
    return *finished_;
  }

 private:
  enum class Phase {
    kWaiting,   // no child; one is started at the deadline
    kStarting,  // it has not said READY=1; aborted at the deadline
    kRunning,   // WATCHDOG=1 moves the deadline, at which it is aborted
    kStopping,  // it was told to end, or said STOPPING=1; killed at the deadline
    kAborting,  // SIGABRT was sent; killed at the deadline
    kKilled,    // SIGKILL was sent; there is nothing more to do than to wait
  };

  void turn() {
    std::array<pollfd, 3> waited{{{signals_.get(), POLLIN, 0},
                                  {receiver_->descriptor(), POLLIN, 0},
                                  {phase_ == Phase::kWaiting ? -1 : child_.process.get(), POLLIN, 0}}};
    static_cast<void>(poll(waited.data(), waited.size(), timeout()));  // if it fails, the deadlines are looked at
    if ((waited[0].revents & POLLIN) != 0) take_signals();
    if ((waited[2].revents & POLLIN) != 0) {
      died();
    } else if ((waited[1].revents & POLLIN) != 0) {
      take_messages(kMessagesAtOnce);
    }
    const Time now = clock_.now();
    if (!finished_ && now >= deadline_) late();
    if (parent_period_ > Duration::zero() && now >= parent_due_) {
      tell_parent("WATCHDOG=1");
      parent_due_ = now + parent_period_;
    }
  }

  int timeout() const {
    constexpr std::int64_t kLongestMs = 3'600'000;
    const Time due = parent_period_ > Duration::zero() ? std::min(deadline_, parent_due_) : deadline_;
    if (due == kNever) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(due - clock_.now()).count();
    return static_cast<int>(std::clamp<std::int64_t>(left, 0, kLongestMs));
  }

  // A zero limit means that there is none.
  void enter(Phase phase, Duration limit) {
    phase_ = phase;
    deadline_ = limit > Duration::zero() ? clock_.now() + limit : kNever;
  }

  // A child that is to come must find the socket; another one does, under a name of its own.
  Result<void> renew_receiver() {
    if (receiver_->in_place()) return {};
    auto another = NotifyReceiver::create();
    if (!another) return std::unexpected(std::move(another.error()));
    say("somebody removed {}: another one is there now", receiver_->path());
    receiver_.emplace(std::move(*another));
    return {};
  }

  Result<Child> start_another() {
    if (auto renewed = renew_receiver(); !renewed) return std::unexpected(std::move(renewed.error()));
    return start_child({.command = options_.command, .notify_socket = receiver_->path(), .watchdog = options_.watchdog},
                       kept_);
  }

  void start() {
    auto started = start_another();
    started_ = clock_.now();
    if (!started) {
      wait_to_start(fmt::format("{} could not be started ({})", options_.command[0], started.error().message));
      return;
    }
    child_ = std::move(*started);
    ignored_ = refused_ = 0;
    say("started {} as process {}, with {} kept descriptors", options_.command[0], child_.pid, kept_.size());
    enter(Phase::kStarting, options_.start_timeout);
  }

  void wait_to_start(const std::string& why) {
    const Duration wait = restart_asked_ ? Duration::zero() : backoff_.after(clock_.now() - started_);
    restart_asked_ = false;
    phase_ = Phase::kWaiting;
    deadline_ = clock_.now() + wait;
    say("{}; starting again {}; {} descriptors are kept", why,
        wait == Duration::zero()
            ? std::string("at once")
            : fmt::format("in {} ms", std::chrono::duration_cast<std::chrono::milliseconds>(wait).count()),
        kept_.size());
  }

  void late() {
    switch (phase_) {
      case Phase::kWaiting:
        return start();
      case Phase::kStarting:
      case Phase::kRunning:
        say("process {} {}; aborting it", child_.pid,
            phase_ == Phase::kStarting ? "did not get ready in time" : "did not report in time (watchdog)");
        signal_child(SIGABRT);
        return enter(Phase::kAborting, options_.stop_timeout);
      case Phase::kStopping:
      case Phase::kAborting:
        say("process {} did not end in time; killing it", child_.pid);
        signal_child(SIGKILL);
        return enter(Phase::kKilled, Duration::zero());
      case Phase::kKilled:
        break;
    }
    TERRACE_CHECK(false);
  }

  void signal_child(int signal) const {
    static_cast<void>(syscall(SYS_pidfd_send_signal, child_.process.get(), signal, nullptr, 0));
  }

  void take_signals() {
    signalfd_siginfo info{};
    while (read(signals_.get(), &info, sizeof info) == sizeof info) {
      const auto signal = static_cast<int>(info.ssi_signo);
      if (signal == SIGHUP) {
        restart_asked_ = !stop_asked_;
      } else {
        if (!stop_asked_) tell_parent("STOPPING=1");
        stop_asked_ = true;
        restart_asked_ = false;
      }
      pass_on(signal == SIGHUP ? SIGTERM : signal);
    }
  }

  // An end of the child is asked for; it may be there already, or on its way.
  void pass_on(int signal) {
    switch (phase_) {
      case Phase::kWaiting:
        if (stop_asked_) finished_ = last_status_;
        deadline_ = clock_.now();
        return;
      case Phase::kStarting:
      case Phase::kRunning:
        signal_child(signal);
        return enter(Phase::kStopping, options_.stop_timeout);
      case Phase::kStopping:
        return signal_child(signal);
      case Phase::kAborting:
      case Phase::kKilled:
        return;
    }
  }

  // At most `most` of those that wait; returns when there are no more.
  void take_messages(int most) {
    for (int i = 0; i < most; ++i) {
      auto received = receiver_->receive(child_.pid);
      if (!received) return;
      if (*received) {
        take(std::move(**received));
      } else {
        ++ignored_;
      }
    }
  }

  void take(Notification notification) {
    if (notification.store == Notification::Store::kAdd) {
      if (!kept_.add(std::move(notification.name), std::move(notification.descriptors.front()))) ++refused_;
    } else if (notification.store == Notification::Store::kRemove) {
      kept_.remove(notification.name);
    }
    if (notification.ready && phase_ == Phase::kStarting) {
      enter(Phase::kRunning, options_.watchdog);
      tell_parent(fmt::format("READY=1\nSTATUS=process {} serves", child_.pid));
    } else if (notification.watchdog && phase_ == Phase::kRunning) {
      enter(Phase::kRunning, options_.watchdog);
    }
    if (notification.stopping && (phase_ == Phase::kStarting || phase_ == Phase::kRunning))
      enter(Phase::kStopping, options_.stop_timeout);
  }

  void died() {
    // What it sent before its end is kept too. It is not reaped yet, so that nobody else has its number.
    take_messages(kMessagesAfterDeath);
    const Ending ending = wait_for(child_);
    if (ignored_ > 0) say("ignored {} messages on the notification socket", ignored_);
    if (refused_ > 0)
      say("dropped {} descriptors: {} are kept, of at most {}", refused_, kept_.size(), kept_.capacity());
    const std::string how = ending.by_signal ? fmt::format("was ended by signal {}", ending.status - 128)
                                             : fmt::format("exited with {}", ending.status);
    const std::string what = fmt::format("process {} {}", child_.pid, how);
    last_status_ = ending.status;
    child_ = Child();
    if (!stop_asked_) return wait_to_start(what);
    say("{}, as was asked for", what);
    finished_ = ending.status;
  }

  void tell_parent(std::string_view assignments) const { static_cast<void>(parent_.send(assignments)); }

  const Options& options_;
  const MonotonicClock clock_;
  Fd signals_;
  std::optional<NotifyReceiver> receiver_;  // always there
  service::NotifySocket parent_;
  Duration parent_period_;
  Time parent_due_{};
  KeptDescriptors kept_;
  Backoff backoff_;
  Phase phase_ = Phase::kWaiting;
  Time deadline_;
  Time started_{};
  Child child_;
  bool stop_asked_ = false;
  bool restart_asked_ = false;
  int last_status_ = 0;
  std::uint64_t ignored_ = 0;  // messages of this child's life that were garbage, or another process'
  std::uint64_t refused_ = 0;  // descriptors of this child's life that found no room
  std::optional<int> finished_;
};

}  // namespace

Result<int> supervise(const Options& options) {
  TERRACE_CHECK(!options.command.empty());
  auto signals = prepare_process();
  if (!signals) return std::unexpected(std::move(signals.error()));
  auto parent = service::NotifySocket::from_environment();
  if (!parent) return std::unexpected(std::move(parent.error()));
  auto receiver = NotifyReceiver::create();
  if (!receiver) return std::unexpected(std::move(receiver.error()));
  return Supervisor(options, std::move(*signals), std::move(*receiver), std::move(*parent)).run();
}

}  // namespace terrace::supervise
