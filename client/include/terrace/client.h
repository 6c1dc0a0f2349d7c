// SPDX-License-Identifier: Apache-2.0
// The client library of Terrace: one Client is one session with the node's terraced. Needs neither gRPC nor protobuf.
//
//   auto client = terrace::Client::connect();
//   auto tensor = client->create({.name = "weights", .dtype = terrace::DType::kFloat32, .shape = {1024, 1024}});
//   auto lease = client->acquire(*tensor, {.mode = terrace::Mode::kWrite});
//   std::ranges::fill(lease->span<float>(), 1.0f);
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "terrace/error.h"
#include "terrace/lease.h"
#include "terrace/pending.h"
#include "terrace/tensor.h"

namespace terrace {

namespace shm {
enum class Operation : std::uint32_t;
}

// How long a call waits unless it is told otherwise.
inline constexpr std::chrono::nanoseconds kTimeoutDefault = std::chrono::seconds(60);
// How long a client waits for a daemon that has ended to come back.
inline constexpr std::chrono::nanoseconds kReconnectTimeoutDefault = std::chrono::seconds(60);

// Bytes of a place that the session may always hold leased at once.
struct Guarantee {
  Place place = Place::host();
  std::uint64_t bytes = 0;
};

// A share: tensors that several sessions of a tenant have in common, held once. A client of a share works on the
// share's tensors and no others. Any number read a tensor at a time, or one writes it; who waits for the others' leases
// is to hold none in the share. It lives, with its tensors, until its last client is closed or dead. A tensor whose
// writer died is torn: reading it is kFailedPrecondition until it is overwritten.
struct ShareOptions {
  enum class Use : std::uint32_t {
    kRead = 1,    // one that is there, for reading: its memory is mapped read-only
    kWrite = 2,   // one that is there, for reading and writing
    kCreate = 3,  // a new one, for reading and writing; the guarantees are the share's
  };
  std::string name{};  // 1 to 63 bytes, unique among the tenant's shares
  Use use = Use::kRead;
};

struct ConnectOptions {
  // Path of the daemon's data socket. Empty: $TERRACE_SOCKET, else $XDG_RUNTIME_DIR/terrace/data.sock if it is there,
  // else /run/terrace/data.sock.
  std::string socket{};
  // Places not named get the daemon's default: half the place's capacity divided by local_world_size.
  std::vector<Guarantee> guarantees{};
  // Ranks on this node. 0: $LOCAL_WORLD_SIZE, else 1.
  std::uint32_t local_world_size = 0;
  // How long to wait for the daemon's answer, which waits for memory behind the guarantees.
  std::chrono::nanoseconds timeout = kTimeoutDefault;
  // For people, at most 63 bytes ("rank 3"). Empty: the program's name.
  std::string label{};
  // How long a daemon that has ended may stay away before the session counts as lost; 0: not at all. Until then leases
  // and mappings stay as they are, calls wait (each until its own timeout), and when it is back they go on.
  std::chrono::nanoseconds reconnect_timeout = kReconnectTimeoutDefault;
  // The share to be a client of. kNotFound if it is not there (of another tenant's, too), kAlreadyExists if it is to be
  // created and is there.
  std::optional<ShareOptions> share{};
};

struct LeaseOptions {
  Place place = Place::host();
  Mode mode = Mode::kRead;                             // of all tensors of a set, unless `modes` are given
  std::chrono::nanoseconds timeout = kTimeoutDefault;  // 0: at once or not at all
  // A read lease at the tensor's writable address, for consumers that cannot keep read-only memory apart (torch). It
  // is still a read lease: what is written through it may be lost.
  bool writable_view = false;
  // A read that says nothing of what the trainer uses, as one for a checkpoint: the daemon neither learns from it nor
  // keeps for it what else would go. kInvalidArgument with another mode.
  bool passing = false;
  // Of a set whose tensors are not all leased alike: one for each, in the set's order. Empty: `mode` for all of them.
  std::vector<Mode> modes{};
};

// A place as the daemon offers it to this session.
struct PlaceOffer {
  Place place = Place::host();
  std::uint64_t capacity_bytes = 0;
  std::uint64_t guarantee_bytes = 0;
  bool gpu = false;  // the memory is a GPU's, so that leases there have a cuda_device(); false: the CPU addresses it
};

// What the step that begins does; the daemon keeps a template of accesses for each.
enum class StepKind : std::uint32_t { kTrain = 0, kAccumulate = 1, kEval = 2 };

// What a step is going to lease at once, and how long it will be computed with; a guess is enough.
struct DeclaredSet {
  std::vector<Tensor> tensors{};
  Place place = Place::host();
  Mode mode = Mode::kRead;
  std::chrono::microseconds compute = std::chrono::milliseconds(1);
};

// A session. Move-only; all calls are thread-safe (but not against moving or destroying it). It outlives the daemon's
// restart: calls under way are asked again, and none is carried out twice. Every call can fail with kUnavailable (the
// session is lost, or the daemon draining; leases stay valid), kDeadlineExceeded (the daemon may be away: the message
// says since when), kResourceExhausted (full, at once), and kFailedPrecondition in a forked child, where nothing of the
// parent's session can be used. kInvalidArgument for tensors of another client; kAborted for tensors that were
// destroyed.
class Client {
 public:
  // Opens a session. kUnavailable if no daemon is there: the message shows the command that starts one.
  // kResourceExhausted if the guarantees cannot be had in time: the message names who holds what.
  static Result<Client> connect(const ConnectOptions& options = {});
  // The same without waiting for the daemon's answer here.
  static Pending<Client> connect_async(const ConnectOptions& options = {});
  Client(Client&& other) noexcept;
  Client& operator=(Client&& other) noexcept;
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  ~Client();  // close()

  // Ends the session: its tensors are gone. With leases still held it ends at the last one's release. Idempotent; later
  // calls, and those that wait on other threads, get kFailedPrecondition.
  void close();

  // Creates all or none (of each run of 8192, where there are more: if a later run fails, the earlier ones are
  // destroyed again). kAlreadyExists for a name in use; kResourceExhausted if they can never fit.
  Result<std::vector<Tensor>> create(std::span<const TensorSpec> specs,
                                     std::chrono::nanoseconds timeout = kTimeoutDefault);
  Result<Tensor> create(const TensorSpec& spec, std::chrono::nanoseconds timeout = kTimeoutDefault);
  // The same without waiting here. Later runs are asked for while it is waited for; dropped, it creates nothing.
  Pending<std::vector<Tensor>> create_async(std::span<const TensorSpec> specs,
                                            std::chrono::nanoseconds timeout = kTimeoutDefault);
  // Tensors that are there, by name: of a share, what other clients created. kNotFound names the first that is not.
  Result<std::vector<Tensor>> find(std::span<const std::string> names,
                                   std::chrono::nanoseconds timeout = kTimeoutDefault);
  // The names are free at once, the bytes at the last release of each.
  Result<void> destroy(std::span<const Tensor> tensors, std::chrono::nanoseconds timeout = kTimeoutDefault);
  Pending<void> destroy_async(std::span<const Tensor> tensors, std::chrono::nanoseconds timeout = kTimeoutDefault);

  // Leases one tensor. Where it is resident already: one atomic operation, no system call. Otherwise waits while the
  // daemon brings it. kFailedPrecondition: never written (and the mode is kRead), or leased in another place.
  // kDataLoss: the bytes are gone; write it again.
  Result<Lease> acquire(const Tensor& tensor, const LeaseOptions& options = {});
  // Leases a set (at most 65536), all or nothing, in the order given. Take what is used together in one set, each
  // tensor in its own mode if need be: waiting for one lease while holding another can pass the session's guarantee,
  // and what is held may lie in the way of the rest. kInvalidArgument: not as many modes as tensors.
  Result<std::vector<Lease>> acquire(std::span<const Tensor> tensors, const LeaseOptions& options = {});
  // The same without waiting here.
  Pending<std::vector<Lease>> acquire_async(std::span<const Tensor> tensors, const LeaseOptions& options = {});

  // Whether a read lease there would have been had at once, without the daemon. Nothing is leased, nothing is noted as
  // used, and it may change at any time.
  Result<bool> resident(const Tensor& tensor, Place place = Place::host()) const;

  // Brings the set to a place and leases nothing: where it is may change at any time afterwards.
  Result<void> swap_in(std::span<const Tensor> tensors, Place place,
                       std::chrono::nanoseconds timeout = kTimeoutDefault);
  // Moves the set down to a place, and frees what it held above.
  Result<void> swap_out(std::span<const Tensor> tensors, Place place = Place::block(),
                        std::chrono::nanoseconds timeout = kTimeoutDefault);
  Pending<void> swap_in_async(std::span<const Tensor> tensors, Place place,
                              std::chrono::nanoseconds timeout = kTimeoutDefault);
  Pending<void> swap_out_async(std::span<const Tensor> tensors, Place place = Place::block(),
                               std::chrono::nanoseconds timeout = kTimeoutDefault);

  // Hints, answered before anything has moved. Evict: soon not needed above. Dont_need: the content is not needed any
  // more and is not written back; a read afterwards is kFailedPrecondition until it is written again.
  Result<void> prefetch(std::span<const Tensor> tensors, Place place = Place::host());
  Result<void> evict(std::span<const Tensor> tensors);
  Result<void> dont_need(std::span<const Tensor> tensors);
  // The same without waiting here; dropped unanswered, they are said all the same. What is not needed must not be
  // written again before the answer is there.
  Pending<void> prefetch_async(std::span<const Tensor> tensors, Place place = Place::host());
  Pending<void> evict_async(std::span<const Tensor> tensors);
  Pending<void> dont_need_async(std::span<const Tensor> tensors);

  // Keeps the set in a place until unpin; counts as leased.
  Result<void> pin(std::span<const Tensor> tensors, Place place = Place::host(),
                   std::chrono::nanoseconds timeout = kTimeoutDefault);
  Pending<void> pin_async(std::span<const Tensor> tensors, Place place = Place::host(),
                          std::chrono::nanoseconds timeout = kTimeoutDefault);
  Result<void> unpin(std::span<const Tensor> tensors);

  // A step of training begins.
  Result<void> mark_step(StepKind kind = StepKind::kTrain);
  // What the steps of a kind are going to lease, in order, so that a daemon that plans (docs/concepts/planning.md) has
  // a plan of the first one, from its mark_step on, and need not see one before. What steps do lease is learned over
  // it. Replaces what was declared of the kind before. kFailedPrecondition for a client of a share.
  Result<void> declare_step(std::span<const DeclaredSet> sets, StepKind kind = StepKind::kTrain);

  // The daemon's number for this session, for people; 0 once closed.
  std::uint32_t session() const;
  // Path of the socket that it came through.
  const std::string& socket() const;
  // Places this session can lease in, host first where there is one.
  std::vector<PlaceOffer> places() const;
  // The number that this process has for the GPU whose memory the place is, as its leases' cuda_device(); nullopt: the
  // CPU addresses it. Loads the driver if nobody has, and makes no context. kInvalidArgument for a place that this
  // session cannot lease in, kFailedPrecondition where this process cannot see that GPU.
  Result<std::optional<int>> cuda_device(Place place) const;
  // How often the session went on with a restarted daemon; 0 once closed.
  std::uint64_t reconnects() const;
  // Leases and tokens not yet released, and calls not yet answered.
  std::uint64_t held() const;
  // Waits until leases of this process have ended that were released behind streams of a GPU before this call, for a
  // second at most: have the GPU pass those streams first. False: some have not ended.
  bool await_passed() const;
  // Host memory of this session that is pinned for the process's own copies to and from its GPU. It comes to be once
  // the process computes on a GPU that the daemon has a place of; what cannot be pinned works as well, and slower.
  std::uint64_t pinned_bytes() const;

 private:
  struct State;
  class Opening;
  explicit Client(std::unique_ptr<State> state);
  class Use;
  Use use() const;
  Result<void> ask(shm::Operation operation, std::span<const Tensor> tensors, std::uint32_t place,
                   std::chrono::nanoseconds timeout);
  Pending<void> ask_async(shm::Operation operation, std::span<const Tensor> tensors, std::uint32_t place,
                          std::chrono::nanoseconds timeout);
  std::unique_ptr<State> state_;
};

}  // namespace terrace
