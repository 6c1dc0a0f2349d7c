// SPDX-License-Identifier: Apache-2.0
// Requests to the daemon through the session's rings, and their answers; while the daemon is away they wait here, and
// go to the next one. Thread-safe: any number of threads submit and wait; whoever waits drains the completions for all.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "arena.h"
#include "data_socket.h"
#include "shm/region.h"
#include "shm/ring.h"
#include "terrace/error.h"

namespace terrace::client {

// How much longer than the daemon the library waits for the daemon's answer: the daemon's own refusal says more.
inline constexpr std::chrono::seconds kGrace{2};

// What is asked: the block's content is the handles, and behind them the modes of an acquire; or the records.
struct Question {
  shm::Operation operation{};
  shm::Mode mode = shm::Mode::kRead;  // of a declared set
  std::uint32_t place = 0;
  std::uint64_t value = 0;
  std::uint64_t flags = 0;  // of shm::Submission, but for kResubmitted
  std::chrono::nanoseconds timeout{};
  std::span<const std::uint64_t> handles{};
  std::span<const shm::Mode> modes{};  // of an acquire, by handle; those that are missing read
  std::span<const shm::CreateRecord> records{};
  bool waits_for_room = true;  // also while the daemon is away; false: kResourceExhausted then, at once
};

// A request that is under way or answered. Its fields are Calls' own until wait() or ready() said that it is done; then
// `error` is the answer, or nothing if it was granted.
struct Call {
  std::uint64_t id = 0;
  shm::Operation operation{};
  shm::Mode mode{};
  std::uint32_t place = 0;
  std::uint64_t value = 0;
  std::uint64_t flags = 0;
  std::vector<std::uint64_t> handles;      // of the question; of the answer to a create
  std::vector<shm::Mode> modes;            // of an acquire
  std::vector<shm::CreateRecord> records;  // of a create
  Arena::Block block;
  Deadline deadline;       // the question's; never changes
  Deadline overdue;        // when the daemon should have answered; never changes
  bool submitted = false;  // to a daemon that may have ended since
  bool done = false;
  bool abandoned = false;
  std::optional<Error> error;
};

// What a call on, or during which, the client was closed ends with.
std::unexpected<Error> client_closed();

class Calls {
 public:
  // What to do with leases that nobody waits for any more; called under the lock of Calls.
  using GiveBack = std::function<void(std::uint64_t handle, shm::Mode mode)>;

  // `doorbell`: the daemon's eventfd. Both outlive this.
  Calls(const shm::RegionView& region, int doorbell, GiveBack give_back);

  // Hands the question to the daemon; waits, until `deadline`, while rings or arena are full. kResourceExhausted then.
  Result<std::shared_ptr<Call>> submit(const Question& question, Deadline deadline);
  // Whether it is answered. Never blocks.
  bool ready(const std::shared_ptr<Call>& call);
  // Waits for the answer. False: it is still under way at the deadline, or when end_waits() is called.
  bool wait(const std::shared_ptr<Call>& call, Deadline deadline);
  // The client was closed: waits end at once, and nothing more is submitted (kFailedPrecondition). Answers still come.
  void end_waits();
  bool waits_ended() const { return waits_ended_.load(std::memory_order_acquire); }
  // Nobody waits any more: what the answer brings is given back when it comes.
  void abandon(const std::shared_ptr<Call>& call);
  // Whether overwrites that were given up may yet be granted, and undone: what they name is torn then, whoever has it.
  bool has_given_up_overwrites() const { return overwrites_given_up_.load(std::memory_order_acquire) != 0; }
  // Waits until no such overwrite names one of these. False: one still does at the deadline, or when end_waits() is
  // called.
  bool settled(std::span<const std::uint64_t> handles, Deadline deadline);
  // Destroys what was created for nobody, as soon as there is room.
  void destroy(std::vector<std::uint64_t> handles);
  // Why a call that is overdue has no answer.
  Error overdue() const;
  // Whether answers to abandoned calls are still to come; drains what is there.
  bool has_abandoned();
  // The daemon is gone: all calls, also later ones, end with this error.
  void fail_all(const Error& error);

  // The daemon is away: until resume() the rings are not touched, and calls wait, each until its own deadline. How many
  // completions were taken since the last reset; nothing if calls have failed for good.
  std::optional<std::uint32_t> suspend();
  // A daemon goes on with the session, and has reset both rings: submits what has no answer.
  void resume();

 private:
  using Lock = std::unique_lock<std::mutex>;

  // When the daemon went away.
  struct Absence {
    Deadline since;
    std::chrono::system_clock::time_point date;
  };

  // All of these under mutex_.
  std::shared_ptr<Call> try_submit(const Question& question);
  // Hands the call to the daemon. False: the ring is full, or the calls are broken off.
  bool push(Call& call, std::chrono::nanoseconds timeout);
  void ring() const;
  void resubmit();
  // Ends a call for which the daemon was away too long. What a daemon may have made of it already is abandoned: gives
  // that, to be submitted.
  std::shared_ptr<Call> end_late(const std::shared_ptr<Call>& call);
  Error no_room() const;
  Error away() const;
  void drain();
  void complete(const shm::Completion& completion);
  // It is not under way any more.
  void forget(Call& call);
  // Nobody waits for it, and it is under way; then, that it was.
  void give_up(Call& call);
  void end_given_up(const Call& call);
  void read_answer(Call& call, const shm::Completion& completion);
  void undo(Call& call);
  void break_off(Error error);

  // Until the tail moves past `seen`, or a while has passed.
  void sleep(std::uint32_t seen, Deadline deadline);
  bool spin(std::uint32_t seen) const;

  shm::RegionView region_;
  int doorbell_;
  GiveBack give_back_;
  std::atomic<bool> waits_ended_{false};
  mutable std::mutex mutex_;
  Arena arena_;
  shm::RingProducer<shm::Submission> submissions_;
  shm::RingConsumer<shm::Completion> completions_;
  std::unordered_map<std::uint64_t, std::shared_ptr<Call>> under_way_;  // at most as many as a ring has entries
  std::uint64_t last_id_ = 0;
  std::uint64_t abandoned_ = 0;
  std::atomic<std::uint32_t> overwrites_given_up_{0};  // of the abandoned ones; written under mutex_
  std::vector<std::pair<shm::Operation, std::vector<std::uint64_t>>> to_undo_;
  std::optional<Absence> absence_;
  std::optional<Error> broken_;
};

}  // namespace terrace::client
