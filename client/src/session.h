// SPDX-License-Identifier: Apache-2.0
// A session with the daemon, as everything of the library shares it: client, leases, tokens and pending answers. It
// lives, with its mappings, until the last of them is gone. Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "calls.h"
#include "data_socket.h"
#include "descriptor.h"
#include "holders.h"
#include "place_range.h"
#include "shm/log.h"
#include "shm/region.h"
#include "tensor_record.h"
#include "terrace/client.h"

namespace terrace::client {

class Session {
 public:
  struct Opened {
    Session* session = nullptr;           // the caller is its maker, who holds it
    std::unique_ptr<std::thread> reader;  // ends with the session
  };
  // Opening takes two steps: the greeting, and, once it was answered, what the answer brings.
  struct Greeted {
    std::string path;
    DataSocket socket;
    Deadline overdue;  // when the daemon should have answered
    std::chrono::nanoseconds reconnect_timeout;
    Result<void> sent;
  };
  static Result<Greeted> greet(const ConnectOptions& options);
  // Waits until `deadline` for enter() not to wait: the daemon answered, or is overdue.
  static bool answered(const Greeted& greeted, Deadline deadline);
  static Result<Opened> enter(Greeted greeted);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  std::uint64_t serial() const { return serial_; }
  std::uint32_t id() const { return id_; }
  const std::string& path() const { return path_; }
  std::vector<PlaceOffer> offers() const;
  Result<std::optional<int>> cuda_device(Place place) const;
  // How often a daemon has gone on with the session.
  std::uint64_t reconnects() const { return reconnects_.load(std::memory_order_relaxed); }
  std::uint64_t pinned_bytes() const;
  // Of the GPU whose memory a place is, where memory of it is mapped: what release_past_soon() needs.
  cuda::Context gpu_context(std::uint32_t place) const;
  // Whether this process is a forked child of the one that opened the session.
  bool forked() const { return forked_.load(std::memory_order_relaxed); }

  // The client, which is the maker, with the calls that are inside it; leases, tokens and pending answers. Once they
  // are shut and gone, the reader takes the session down.
  const std::shared_ptr<Holders>& holders() const { return holders_; }
  void hold() { holders_->add(); }
  // No lock, no waiting.
  void let_go() noexcept { holders_->leave(); }

  Result<std::vector<Tensor>> create(std::span<const TensorSpec> specs, std::chrono::nanoseconds timeout);
  Pending<std::vector<Tensor>> create_async(std::span<const TensorSpec> specs, std::chrono::nanoseconds timeout);
  Result<std::vector<Tensor>> find(std::span<const std::string> names, std::chrono::nanoseconds timeout);
  // The lease takes over a hold of the session that its caller has; without a lease the caller keeps it.
  Result<Lease> acquire(const Tensor& tensor, const LeaseOptions& options);
  Result<std::vector<Lease>> acquire(std::span<const Tensor> tensors, const LeaseOptions& options);
  Pending<std::vector<Lease>> acquire_async(std::span<const Tensor> tensors, const LeaseOptions& options);
  Result<bool> resident(const Tensor& tensor, Place place);
  // Any request about tensors whose answer is a plain yes.
  struct Order {
    shm::Operation operation{};
    shm::Mode mode = shm::Mode::kRead;
    std::uint32_t place = 0;
    std::uint64_t value = 0;
    std::chrono::nanoseconds timeout = kTimeoutDefault;
  };
  Result<void> ask(std::span<const Tensor> tensors, const Order& order);
  Pending<void> ask_async(std::span<const Tensor> tensors, const Order& order);

  // Ends one lease: the word alone, then the doorbell if somebody waits. No lock, no waiting.
  shm::Outcome give_back(std::uint64_t handle, shm::Mode mode) noexcept;
  // Says of an overwrite's lease that it is given up; the lease is still to be given back. No lock, no waiting.
  void tear(std::uint64_t handle) noexcept;
  // Ends one lease that the daemon granted and nobody got.
  void give_up(std::uint64_t handle, shm::Mode mode) noexcept;
  // The calling thread needs its access log no more.
  void give_back_log(std::uint32_t log);

  // The client is being closed, and its holders are shut: whoever waits for anything gets kFailedPrecondition, and the
  // reader looks from now on who is left.
  void end_waits();

  // By the fork handler, in the child: nothing of the session is used any more.
  void become_forked_child();

 private:
  friend class CallAnswer;
  friend class TensorsAnswer;
  friend class LeasesAnswer;
  friend class SettledFirst;

  // A granted lease's memory is on its way already: how long it may take, whatever the call's own timeout.
  static constexpr std::chrono::seconds kMappingTimeout{20};

  // Pauses between attempts to connect again: whoever waits for the daemon waits for the next one.
  static constexpr std::chrono::milliseconds kPauseMin{10};
  static constexpr std::chrono::milliseconds kPauseMax{50};
  struct Absence {
    Deadline since;
    Deadline end;  // of the attempts
    Deadline next_attempt;
    std::chrono::milliseconds pause = kPauseMin;  // after it
    std::uint32_t completions_seen = 0;
    std::string trouble;  // of the last attempt
  };

  Session(Greeted greeted, const shm::Welcome& welcome, Descriptor doorbell, Descriptor wake, shm::RegionView region);
  ~Session();
  static Result<std::unique_ptr<Session, void (*)(Session*)>> settle(Greeted greeted, Message welcome);

  // The library's own thread: segments come and go, and so do daemons.
  enum class Link {
    kOpen,
    kAway,      // the connection ended; there is none
    kResuming,  // there is one, on which the daemon was asked to go on
    kLost,      // for good
  };
  void read_messages();
  int patience_ms();
  bool nobody_is_left() const { return holders_->shut() && holders_->count() == 0; }
  void hear();
  Result<void> handle(const Message& message);
  Result<void> handle_segment(const Message& message);
  Result<void> handle_seam(const Message& message);
  // seam: 0, a segment.
  void note_mapped(std::uint32_t place, std::uint64_t seam, const Result<void>& mapped);
  void lose_daemon(const Error& why);
  void lose_connection(const Error& why);
  void keep_trying();
  void try_to_resume();
  void try_again_later(const Error& why);
  void hear_of_resuming(const Result<Message>& message);
  Result<void> resume(const shm::Resumed& resumed);
  Result<void> unmap_unlisted();
  void say_goodbye();
  void wake_reader();

  Result<void> usable() const;
  bool owns(const Tensor& tensor) const;
  // The packed handles, if all are this session's.
  Result<std::vector<std::uint64_t>> handles_of(std::span<const Tensor> tensors) const;
  Result<std::shared_ptr<Call>> submit(const Question& question);
  // Nobody waits any more for this call.
  void abandon(const std::shared_ptr<Call>& call);
  // Waits until `deadline` for take() to have something to say: the call is answered or overdue, or the client closed.
  bool settled(const std::shared_ptr<Call>& call, Deadline deadline);
  // The settled call's answer; abandons it if there is none.
  Result<void> take(const std::shared_ptr<Call>& call);
  // Both, however long it takes.
  Result<void> finish(const std::shared_ptr<Call>& call);
  Result<std::shared_ptr<Call>> submit_order(std::span<const Tensor> tensors, const Order& order, bool waits_for_room);
  Result<std::shared_ptr<Call>> submit_acquire(std::span<const Tensor> tensors, const LeaseOptions& options,
                                               bool waits_for_room);
  // Waits until no overwrite of one of these that was given up may yet be granted, which would tear it.
  // kDeadlineExceeded where one still may after that time.
  Result<void> settle(std::span<const Tensor> tensors, std::chrono::nanoseconds timeout);
  // The same within the options' timeout: the options with what is left of it.
  Result<LeaseOptions> settle_first(std::span<const Tensor> tensors, const LeaseOptions& options);
  Result<Lease> acquire_now(const Tensor& tensor, const LeaseOptions& options);
  Result<std::vector<Lease>> acquire_now(std::span<const Tensor> tensors, const LeaseOptions& options);
  Result<std::vector<Lease>> acquire_slowly(std::span<const Tensor> tensors, const LeaseOptions& options);
  Tensor make_tensor(TensorSpec spec, std::uint64_t handle) const;

  // kAborted naming the first that was destroyed, as far as the table says so already: the daemon no longer knows it.
  Result<void> check_lives(std::span<const Tensor> tensors) const;
  Result<void> check_place(Place place) const;
  Result<void> check_options(const LeaseOptions& options, std::size_t tensors) const;
  PlaceRange* range(std::uint32_t place) const { return place < ranges_.size() ? ranges_[place].get() : nullptr; }
  // One lease in the table; kAskDaemon if it is not to be had there.
  shm::Outcome try_fast(std::uint64_t handle, Place place, shm::Mode mode);
  // The whole set in the table; false if the daemon is to be asked.
  Result<bool> try_fast_set(std::span<const Tensor> tensors, const LeaseOptions& options);
  // The lease that is counted already, for which the caller has a hold of the session: gives it back, but not the hold,
  // if it cannot be used.
  Result<Lease> make_lease(const Tensor& tensor, const LeaseOptions& options, Mode mode);
  Result<std::vector<Lease>> make_leases(std::span<const Tensor> tensors, const LeaseOptions& options);
  // Lets leases have the segments that came, if there are so many.
  void finish_segments(std::size_t at_least);
  // Has host memory pinned, from now on, if this process computes on a GPU.
  void pin_host();
  Result<void> wait_mapped(const PlaceRange& range, std::uint64_t offset, std::uint64_t bytes);

  std::set<std::pair<std::uint32_t, std::uint64_t>> listed_;  // place and offset of each segment that was passed again
  const std::uint64_t serial_;
  const std::uint32_t id_;
  const std::string path_;
  DataSocket socket_;  // replaced without_fork()
  Descriptor doorbell_;
  Descriptor wake_;  // of the reader: one per wake-up
  shm::RegionView region_;
  std::uint64_t region_bytes_;
  std::array<std::unique_ptr<PlaceRange>, shm::kPlacesMax> ranges_;
  Calls calls_;
  const std::shared_ptr<Holders> holders_ = std::make_shared<Holders>();  // with the client, whose calls enter by them
  std::atomic<bool> forked_{false};

  // How the daemon is got back; the reader's own.
  const std::array<std::uint8_t, 16> token_;
  const std::chrono::nanoseconds reconnect_timeout_;
  std::uint64_t epoch_;
  Link link_ = Link::kOpen;
  Absence absence_;
  int look_pause_ms_ = 0;  // between looks at the holders once they are shut
  std::atomic<std::uint64_t> reconnects_{0};

  std::mutex mutex_;
  std::condition_variable changed_;  // a segment was mapped, or the daemon is gone
  std::optional<Error> gone_;        // why no segment comes any more
  // By place and seam (0: a GPU's segments): why they cannot be mapped here.
  std::map<std::pair<std::uint32_t, std::uint64_t>, Error> unmappable_;
};

}  // namespace terrace::client
