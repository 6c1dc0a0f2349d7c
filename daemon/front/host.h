// SPDX-License-Identifier: Apache-2.0
// The daemon at work: one thread that drives the engine with a real ring, real memory and real trainers (DESIGN
// decision 2). Host makes what the folders below hold, says who knows whom, and turns it all.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "config/config.h"
#include "engine/engine.h"
#include "front/doors/doors.h"
#include "front/entrance.h"
#include "front/gateway/gateway.h"
#include "front/gateway/pressure_watchers.h"
#include "front/gateway/refusals.h"
#include "front/gateway/tokens.h"
#include "front/node/failures.h"
#include "front/node/node.h"
#include "front/reactor/engine_loop.h"
#include "front/reactor/reactor.h"
#include "front/reactor/service_notify.h"
#include "front/sessions/access_logs.h"
#include "front/sessions/arrivals.h"
#include "front/sessions/polled_rings.h"
#include "front/sessions/rings.h"
#include "front/sessions/segments.h"
#include "front/sessions/sessions.h"
#include "front/survival/block_return.h"
#include "front/survival/catalog_home.h"
#include "front/survival/keeper.h"
#include "front/training/training.h"
#include "mover/mover.h"
#include "mover/workers.h"
#include "service/descriptor_store.h"
#include "terrace/error.h"

namespace terrace::front {

// The supervisor's store, and what was in it at start.
struct Inheritance {
  service::DescriptorStore store;
  service::Adopted adopted;
};

class Host final : private Receiver {
 public:
  // Takes the node's memory, block files and io_uring, and the data sockets. `config` is resolved. The thread that
  // calls serve() is the reactor. Errors name what could not be had.
  // `inheritance`: what a former daemon left with the supervisor.
  static Result<std::unique_ptr<Host>> create(const config::Config& config, const mover::Workers::Options& workers,
                                              NodeFacts facts, Inheritance inheritance = {});
  ~Host() override;
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  // The way in for other threads, until this goes.
  Gateway& gateway() { return entrance_; }
  // Listens on a stream socket whose connections go to `adopt` (gRPC). Before serve().
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

 private:
  // What create() takes first.
  struct Parts {
    Node node;
    std::unique_ptr<Reactor> reactor;
    std::unique_ptr<mover::Workers> workers;
    std::unique_ptr<mover::Mover> mover;
  };

  Host(const config::Config& config, Parts parts, NodeFacts facts, service::DescriptorStore store);
  Result<void> start(service::Adopted adopted);
  Result<void> open_doors();
  Result<void> turn(Duration longest);
  void sweep();
  Result<void> wind_up(std::function<void()> stopping);
  void end_sessions();

  void transfer_failed() override { failures_.look(loop_.engine(), loop_.now()); }
  void segment_done(const mover::SegmentDone& done) override { segments_.done(done); }
  void ordered(const mover::SegmentOrder& order) override { segments_.order(order); }
  void observed(const std::vector<foresight::Observation>& seen) override { training_.observed(seen); }
  void lost(const std::vector<engine::Loss>& losses) override { failures_.tell_of(losses); }
  void changed(const std::vector<engine::OutageNews>& outages) override { failures_.tell_of(outages); }
  void closed(SessionId id) override { sessions_.forget_token(id); }
  void gone(SessionId id) override;
  void complete(engine::Status& status) override;
  void pressed(const std::vector<engine::Pressure>& pressure) override { watchers_.tell(pressure); }
  void settled() override { keeper_.flush(); }

  const config::Config config_;
  Node node_;
  ServiceNotify notify_;
  Tokens tokens_;
  Refusals refusals_;
  PressureWatchers watchers_;
  std::unique_ptr<Reactor> reactor_;
  std::unique_ptr<mover::Workers> workers_;
  std::unique_ptr<mover::Mover> mover_;
  CatalogHome home_;
  EngineLoop loop_;
  Keeper keeper_;
  BlockReturn block_;
  Failures failures_;
  AccessLogs logs_;
  PolledRings polled_;
  Sessions sessions_;
  Segments segments_;
  Rings rings_;
  Arrivals arrivals_;
  Training training_;
  Entrance entrance_;
  Doors doors_;
  Time last_sweep_{};
};

}  // namespace terrace::front
