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

#include "config/config.h"
#include "engine/engine.h"
#include "front/doors/doors.h"
#include "front/gateway/gateway.h"
#include "front/gateway/pressure_watchers.h"
#include "front/gateway/tokens.h"
#include "front/node/failures.h"
#include "front/node/node.h"
#include "front/reactor/engine_loop.h"
#include "front/reactor/reactor.h"
#include "front/reactor/service_notify.h"
#include "front/reactor/watch.h"
#include "front/sessions/session.h"
#include "front/sessions/space.h"
#include "front/sessions/stamp_clock.h"
#include "front/survival/block_return.h"
#include "front/survival/catalog_home.h"
#include "front/survival/keeper.h"
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

class Host final : public Gateway, private Receiver {
 public:
  // Takes the node's memory, block files and io_uring, and the data sockets. `config` is resolved. The thread that
  // calls run() is the reactor. Errors name what could not be had.
  // `inheritance`: what a former daemon left with the supervisor.
  static Result<std::unique_ptr<Host>> create(const config::Config& config, const mover::Workers::Options& workers,
                                              NodeFacts facts, Inheritance inheritance = {});
  ~Host() override;

  // Listens on a stream socket whose connections go to `adopt`. Before serve().
  Result<void> listen_stream(const std::string& path, mode_t mode, Peer peer, Adopt adopt);
  // What else counts against the cap on connections.
  void count_connections(std::function<std::size_t()> others) { doors_.count(std::move(others)); }

  // The catalog that a successor would go on with, borrowed; none where nothing outlives this process.
  const Fd* catalog() const { return keeper_.keeps() ? &home_.memory() : nullptr; }

  // Serves until SIGTERM or SIGINT (which the caller has blocked in all threads). Then: no new connections, `stopping`
  // on a thread of its own while requests are still answered, what is in flight is waited for, all within the
  // configured stop timeout. Errors: the ring broke.
  Result<void> serve(std::function<void()> stopping);

  // The same as SIGTERM, from any thread.
  void stop() { reactor_->stop(); }

  mover::MoverFacts mover_facts() const { return mover_->facts(); }

  RequestId post(engine::Request request, Answer answer) override;
  void cancel(RequestId request) override;
  void open(const Peer& peer, engine::OpenSession request, Time deadline, OpenAnswer answer) override;
  Result<SessionId> authenticate(const Token& token, const Peer& peer) override;
  std::uint64_t watch(PressureWatcher watcher) override;
  void unwatch(std::uint64_t watcher) override;
  bool run(std::move_only_function<void()> job) override;
  Time now() const override { return reactor_->now(); }
  const NodeFacts& facts() const override { return facts_; }
  std::byte* address(SessionId session, const engine::Placement& placement) override;

 private:
  // What create() takes first.
  struct Parts {
    Node node;
    std::unique_ptr<Reactor> reactor;
    std::unique_ptr<mover::Workers> workers;
    std::unique_ptr<mover::Mover> mover;
  };

  Host(const config::Config& config, Parts parts, NodeFacts facts, Inheritance inheritance);

  // host.cc: the loop.
  Result<void> start();
  Result<void> turn(Duration longest);
  void sweep();
  void wind_up();

  void transfer_failed() override { failures_.look(loop_->engine(), now()); }
  void segment_done(const mover::SegmentDone& done) override;
  void ordered(const mover::SegmentOrder& asked) override { order(asked); }
  void observed(const std::vector<foresight::Observation>& seen) override { pass_on(seen); }
  void lost(const std::vector<engine::Loss>& losses) override { failures_.tell_of(losses); }
  void closed(SessionId id) override { forget_token(id); }
  void gone(SessionId id) override;
  void complete(engine::Status& status) override;
  void pressed(const std::vector<engine::Pressure>& pressure) override { watchers_.tell(pressure); }
  void settled() override { keeper_.flush(); }

  // host_gpus.cc: what fails.
  std::map<SessionId, std::vector<pid_t>> living() const;
  Result<void> require_gpus(std::span<const engine::Survivor> survivors);
  std::vector<std::string> not_taken_back() const;

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
  void deliver_segment(const mover::SegmentDone& done);
  void send_segment(Session& session, std::size_t tier, tier::Extent extent);
  void send_segments(Session& session);
  void send_seam(Session& session, std::size_t tier, tier::Extent seam, std::span<const tier::Extent> pieces);
  void send_retiring(Session& session);
  Result<void> take_back_segments(const engine::SessionRecord& was);
  Result<void> take_back_seams(SessionId id, Space& space);
  void lose_segment(engine::LostSegment segment, Fd kept);

  // host_survival.cc: what outlives the process.
  Result<void> make_engine();
  Result<void> go_on();
  Result<void> begin_afresh(const engine::CatalogShape& shape);
  void drop_what_is_left(const engine::Status& status);
  void take_back_all(std::vector<engine::Survivor>& survivors);
  Result<Session*> take_back(const engine::SessionRecord& was);
  Result<void> watch_taken_back();
  void keep_session(Session& session);
  void resume(Session& newcomer, const shm::Resume& resume);

  // host_gateway.cc: everybody else.
  Result<void> make_region(Session& session);
  Result<void> watch_process(Session& session);
  Result<void> watch_end(Session& session);
  void register_token(const Session& session);
  void forget_token(SessionId id);
  Session* find(SessionId id);

  const config::Config config_;
  Node node_;
  const NodeFacts facts_;
  ServiceNotify notify_;
  Tokens tokens_;
  PressureWatchers watchers_;
  std::unique_ptr<Reactor> reactor_;
  std::unique_ptr<mover::Workers> workers_;
  std::unique_ptr<mover::Mover> mover_;
  service::Adopted adopted_;  // until the engine is made, as this
  std::vector<engine::LostSegment> lost_segments_;
  std::vector<engine::LostSegment> not_yet_;  // those of them that may be taken back later
  CatalogHome home_;
  std::unique_ptr<EngineLoop> loop_;
  Keeper keeper_;
  BlockReturn block_;
  Failures failures_;
  Doors doors_;

  std::map<std::uint64_t, std::unique_ptr<Session>> newcomers_;  // by key: greeting and opening
  std::map<SessionId, std::unique_ptr<Session>> sessions_;       // open and ending
  std::map<SessionId, Space> spaces_;                            // of sessions, and of shares
  std::vector<Session*> polled_;                                 // open ones whose trainer needs no doorbell now
  bool may_poll_ = false;                                        // there is another processor for who asks
  std::vector<engine::Access> accesses_;
  StampClock stamps_;
  struct Trains {
    Time at{};           // its last step mark
    bool moves = false;  // its plan moves something
  };
  std::map<SessionId, Trains> trains_;  // sessions that marked a step lately
  std::uint64_t last_key_ = 0;
  std::uint64_t resubmitted_requests_ = 0;
  Time last_sweep_{};
  Time last_drain_{};
  Time last_watchdog_{};
  std::unique_ptr<Foreseer> foreseer_;  // last: its thread reaches the mailbox; none: nothing is learned
};

}  // namespace terrace::front
