// SPDX-License-Identifier: Apache-2.0
// The reactor: one thread that drives the engine with a real ring, real memory and real trainers (DESIGN decision 2).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/mapping.h"
#include "config/config.h"
#include "engine/catalog_memory.h"
#include "engine/engine.h"
#include "front/doors/listener.h"
#include "front/gateway/gateway.h"
#include "front/node/node.h"
#include "front/reactor/mailbox.h"
#include "front/reactor/service_notify.h"
#include "front/reactor/watch.h"
#include "front/sessions/session.h"
#include "front/sessions/space.h"
#include "front/sessions/stamp_clock.h"
#include "front/training/foreseer.h"
#include "mover/mover.h"
#include "mover/ring.h"
#include "mover/workers.h"
#include "service/descriptor_store.h"

namespace terrace::front {

// The supervisor's store, and what was in it at start.
struct Inheritance {
  service::DescriptorStore store;
  service::Adopted adopted;
};

class Host final : public Gateway {
 public:
  // Takes the node's memory, block files and io_uring, and the data sockets. `config` is resolved. The thread that
  // calls run() is the reactor. Errors name what could not be had.
  // `inheritance`: what a former daemon left with the supervisor.
  static Result<std::unique_ptr<Host>> create(const config::Config& config, const mover::Workers::Options& workers,
                                              NodeFacts facts, Inheritance inheritance = {});
  ~Host() override;

  // Where connections of other sockets go (gRPC). Returns false when it cannot take one; the connection is then closed.
  using Adopt = std::move_only_function<bool(Fd connection, const Peer& peer)>;
  // Listens on a stream socket whose connections go to `adopt`. Before serve().
  Result<void> listen_stream(const std::string& path, mode_t mode, Peer peer, Adopt adopt);
  // What else counts against the cap on connections.
  void count_connections(std::function<std::size_t()> others) { other_connections_ = std::move(others); }

  // The catalog that a successor would go on with, borrowed; none where nothing outlives this process.
  const Fd* catalog() const { return store_.keeps() && catalog_ ? &catalog_memory_ : nullptr; }

  // Serves until SIGTERM or SIGINT (which the caller has blocked in all threads). Then: no new connections, `stopping`
  // on a thread of its own while requests are still answered, what is in flight is waited for, all within the
  // configured stop timeout. Errors: the ring broke.
  Result<void> serve(std::function<void()> stopping);

  // The same as SIGTERM, from any thread.
  void stop();

  mover::MoverFacts mover_facts() const { return mover_->facts(); }

  RequestId post(engine::Request request, Answer answer) override;
  void cancel(RequestId request) override;
  void open(const Peer& peer, engine::OpenSession request, Time deadline, OpenAnswer answer) override;
  Result<SessionId> authenticate(const Token& token, const Peer& peer) override;
  std::uint64_t watch(PressureWatcher watcher) override;
  void unwatch(std::uint64_t watcher) override;
  bool run(std::move_only_function<void()> job) override;
  Time now() const override { return clock_.now(); }
  const NodeFacts& facts() const override { return facts_; }
  std::byte* address(SessionId session, const engine::Placement& placement) override;

 private:
  struct Door {
    Listener listener;
    Peer peer;    // tenant and admin of whoever comes through
    Adopt adopt;  // null: our own data sessions
    std::unique_ptr<Watch> watch;
  };

  Host(const config::Config& config, Node node, NodeFacts facts, Inheritance inheritance);

  // host.cc: the loop.
  Result<void> start(const mover::Workers::Options& workers);
  Result<void> add_door(Listener listener, Peer peer, Adopt adopt);
  void accept(Door& door);
  Result<void> turn(Duration longest);
  void pump();
  bool pump_once();
  void sweep();
  void wind_up();

  // host_gpus.cc: what fails.
  bool was_lost(std::size_t tier) const;
  void look_for_failures();
  std::map<SessionId, std::vector<pid_t>> living() const;
  Result<void> require_gpus(std::span<const engine::Survivor> survivors);
  std::vector<std::string> not_taken_back() const;
  void tell_of_losses(const std::vector<engine::Loss>& losses);
  void tell_of_pinning();

  // host_sessions.cc: trainers on data.sock.
  void greet(Fd connection, const Peer& peer);
  void read_messages(Session& session);
  void welcome(Session& session, const shm::Hello& hello);
  void opened(std::uint64_t key, engine::Reply reply);
  void doorbell_rang(Session& session);
  void take_submissions(Session& session);
  void take_submission(Session& session, const shm::Submission& submission);
  void answer_submission(SessionId id, const shm::Submission& submission, const engine::Reply& reply);
  void complete(Session& session, const shm::Submission& submission, const Result<engine::ReplyBody>& result,
                RequestId request = {});
  void drain_logs(Session& session);

  // host_busy_poll.cc: rings that are polled for a moment before the reactor sleeps.
  void asked(Session& session);
  bool poll_rings(Duration longest);
  bool leave_ring(Session& session);
  void forget_ring(Session& session);

  // host_foresight.cc: what is learned, and when trainers' logs are looked into.
  void make_foreseer();
  void pass_on(const std::vector<foresight::Observation>& seen);
  Duration drain_period() const;
  Duration until_next_drain(Duration longest) const;
  void drain_trainers();
  template <typename Message>
  void send(Session& session, const Message& message, std::span<const int> descriptors = {});
  void end(Session& session, const Error& reason);
  Result<void> watch_doorbell(Session& session);

  // host_segments.cc: what they map.
  std::vector<Session*> mappers_of(SessionId space);
  Space& space_of(SessionId id);
  void order(const mover::SegmentOrder& order);
  void send_retire(Session& session, const mover::SegmentOrder& order);
  void retired(Session& session, const shm::SegmentMessage& message);
  void start_retired(SessionId id);
  void segment_done(const mover::SegmentDone& done);
  void deliver_segment(const mover::SegmentDone& done);
  void send_segment(Session& session, std::size_t tier, tier::Extent extent);
  void send_segments(Session& session);
  void send_seam(Session& session, std::size_t tier, tier::Extent seam, std::span<const tier::Extent> pieces);
  void send_retiring(Session& session);
  Result<void> take_back_segments(const engine::SessionRecord& was);
  Result<void> take_back_seams(SessionId id, Space& space);
  void lose_segment(engine::LostSegment segment, Fd kept);
  void gone(SessionId id);

  // host_block.cc: files that a former daemon still holds.
  Result<void> expect_block(bool goes_on);
  void begin_serving();
  Duration until_next_look(Duration longest) const;
  void look_for_block();

  // host_survival.cc: what outlives the process.
  Result<void> make_engine();
  Result<void> go_on();
  Result<void> open_catalog(const engine::CatalogShape& shape);
  Result<void> make_catalog(const engine::CatalogShape& shape);
  Result<std::span<std::byte>> map_catalog(const Fd& memory, std::uint64_t bytes);
  void take_back_all(std::vector<engine::Survivor>& survivors);
  Result<Session*> take_back(const engine::SessionRecord& was);
  Result<void> watch_taken_back();
  bool keep(const std::string& name, int descriptor);
  void keep_session(Session& session);
  void drop_kept(const std::string& name);
  void when_kept(std::move_only_function<void()> then);
  void start_barrier();
  void barrier_passed();
  void resume(Session& newcomer, const shm::Resume& resume);

  // host_gateway.cc: everybody else.
  Result<void> make_region(Session& session);
  Result<void> watch_process(Session& session);
  Result<void> watch_end(Session& session);
  void submit(engine::Request request, Answer answer);
  RequestId next_request() { return RequestId{++last_request_}; }
  void register_token(const Session& session);
  void forget_token(SessionId id);
  Session* find(SessionId id);

  const config::Config config_;
  Node node_;
  const NodeFacts facts_;
  const MonotonicClock clock_;
  ServiceNotify notify_;
  std::unique_ptr<Mailbox> mailbox_;
  std::unique_ptr<mover::Ring> ring_;
  std::unique_ptr<mover::Workers> workers_;
  std::unique_ptr<mover::Mover> mover_;
  service::DescriptorStore store_;
  service::Adopted adopted_;  // until the engine is made, as this
  std::vector<engine::LostSegment> lost_segments_;
  std::vector<engine::LostSegment> not_yet_;  // those of them that may be taken back later
  Fd catalog_memory_;
  AddressRange catalog_range_;
  std::optional<engine::CatalogMemory> catalog_;
  std::unique_ptr<engine::Engine> engine_;
  engine::Output output_memory_;  // of the output before: its vectors are used again
  Fd barrier_;
  std::unique_ptr<Watch> barrier_watch_;
  std::vector<std::move_only_function<void()>> behind_barrier_;
  std::vector<std::move_only_function<void()>> after_barrier_;
  std::vector<Fd> spent_barriers_;  // before spent_watches_, so that they go after
  Fd signals_;
  std::vector<std::unique_ptr<Watch>> watches_;  // of the mailbox and of signals
  std::vector<std::unique_ptr<Door>> doors_;
  std::function<std::size_t()> other_connections_ = [] { return std::size_t{0}; };

  std::map<std::uint64_t, std::unique_ptr<Session>> newcomers_;  // by key: greeting and opening
  std::map<SessionId, std::unique_ptr<Session>> sessions_;       // open and ending
  std::map<SessionId, Space> spaces_;                            // of sessions, and of shares
  std::vector<Session*> polled_;                                 // open ones whose trainer needs no doorbell now
  bool may_poll_ = false;                                        // there is another processor for who asks
  // To be destroyed at the end of the turn, when nobody is inside them.
  std::vector<std::unique_ptr<Session>> doomed_;
  std::vector<std::unique_ptr<Watch>> spent_watches_;
  std::unordered_map<RequestId, Answer> answers_;
  std::vector<engine::Access> accesses_;
  StampClock stamps_;
  struct Trains {
    Time at{};           // its last step mark
    bool moves = false;  // its plan moves something
  };
  std::map<SessionId, Trains> trains_;  // sessions that marked a step lately
  std::uint64_t last_key_ = 0;
  std::uint64_t resubmitted_requests_ = 0;
  std::atomic<std::uint64_t> last_request_ = 0;
  Time last_sweep_{};
  Time last_drain_{};
  Time last_watchdog_{};
  struct BlockAwaited {
    Time since{};
    Time looked = since;
    std::string trouble{};  // the log has it
    bool told = false;      // that it takes long
  };
  std::optional<BlockAwaited> block_awaited_;  // while its files are not owned
  std::vector<bool> were_lost_;                // by TierId: TierRecord::lost of what was left
  std::vector<bool> told_failed_;              // by TierId: the engine knows, and the log has it
  std::uint64_t told_refused_bytes_ = 0;
  std::atomic<bool> stopping_ = false;

  struct Ticket {
    SessionId session{};
    Tenant tenant;
    Time last_used{};
  };
  std::mutex tokens_mutex_;
  std::map<Token, Ticket> tokens_;
  std::mutex watchers_mutex_;
  std::map<std::uint64_t, PressureWatcher> watchers_;
  std::uint64_t last_watcher_ = 0;

  std::unique_ptr<Foreseer> foreseer_;  // last: its thread reaches the mailbox; none: nothing is learned
};

}  // namespace terrace::front
