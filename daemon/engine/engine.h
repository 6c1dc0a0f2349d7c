// SPDX-License-Identifier: Apache-2.0
// The engine: sessions, catalog, policy and scheduler as one deterministic state machine (DESIGN decision 1). No I/O,
// no clock, no locks: inputs are the calls below, outputs lie in Output until taken. Not thread-safe: the reactor's
// own.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/time.h"
#include "engine/catalog/memory.h"
#include "engine/values/lease_table.h"
#include "engine/values/options.h"
#include "engine/values/output.h"
#include "engine/values/request.h"
#include "engine/values/status.h"
#include "foresight/plan.h"
#include "mover/transfer.h"
#include "tier/extent.h"

namespace terrace::engine {

// One entry of an access log, unverified.
struct Access {
  Slot slot{};
  shm::Mode mode{};
  Time at{};  // 0: not known, which counts as now
};

// A session that outlived the daemon.
struct Survivor {
  SessionId session{};
  LeaseTable table;
  std::uint32_t completions = 0;  // tail of its completion ring
  std::uint32_t unanswered = 0;   // requests that were taken from its ring and have no completion; for the status alone
};

// A segment of a device that a successor has no way to any more. Whose leases are there keeps them.
struct LostSegment {
  SessionId space{};  // the session's, or the share's
  TierId tier{};
  tier::Extent extent;
  std::string why;
};

// What a catalog says of a tier.
TierRecord tier_record(const TierOptions& options);

// The tenant of a recorded session as these options number it; none: it is none of theirs.
std::optional<std::uint32_t> tenant_socket(const Options& options, const SessionRecord& record);

class Engine {
 public:
  // InvalidArgument names what is wrong with the options. `catalog`, freshly formatted, borrowed: where names and
  // shapes are kept, and where a successor, if there is to be one, finds everything.
  static Result<std::unique_ptr<Engine>> create(Options options, CatalogMemory& catalog);
  // The successor of an engine that died, as the opened catalog and the tables of the sessions say. Sessions that are
  // not among the survivors are gone, and so is what lay in lost segments. FailedPrecondition: the tiers are others, or
  // the catalog is damaged; then nothing was changed in it. InvalidArgument as create().
  static Result<std::unique_ptr<Engine>> restore(Options options, CatalogMemory& catalog,
                                                 std::span<const Survivor> survivors,
                                                 std::span<const LostSegment> lost = {});
  // Whether an engine of these options could go on with a catalog, of one that may still be at work: by its version,
  // shape and tiers, and by the tenants of its sessions. Errors as restore().
  static Result<void> check_succession(const Options& options, const CatalogShape& shape,
                                       std::span<const std::byte> catalog);
  virtual ~Engine() = default;

  // Every request gets exactly one reply, by its deadline (law 6), possibly in the Output of this very call.
  virtual void submit(Time now, Request request) = 0;
  // Nobody waits for this request any more; it gets its reply (kCancelled) unless it had it.
  virtual void cancel(Time now, RequestId request) = 0;
  virtual void transfer_done(Time now, const mover::TransferDone& done) = 0;
  virtual void segment_done(Time now, const mover::SegmentDone& done) = 0;
  // Drained access-log entries, and how many fast leases they stand for (entries may have been lost).
  virtual void accessed(Time now, SessionId session, std::span<const Access> accesses, std::uint64_t fast_leases) = 0;
  // What is foreseen of the session's step that is under way, and what is to be done meanwhile: from now on, instead of
  // what was planned before. A session that is not there, or a share, has none. Whatever the plan says, no law breaks.
  virtual void plan(Time now, SessionId session, std::shared_ptr<const foresight::Plan> plan) = 0;
  // The session's doorbell rang: a lease that somebody waits for may have ended.
  virtual void lease_ended(Time now, SessionId session) = 0;
  // The session's trainer is gone: as CloseSession, without anyone to ask.
  virtual void session_died(Time now, SessionId session) = 0;
  // The request's reply will be in its session's completion ring once the ring's tail is at `position`: before the tail
  // moves there.
  virtual void answering(RequestId request, std::uint32_t position) = 0;
  // It is there, or nobody waits for it any more. For every reply that was taken.
  virtual void answered(RequestId request) = 0;
  // What a former daemon had begun on the block tier is done to the last. Before that, where Options::former_at_work
  // says so, no transfer goes to or from there, and whoever needs one waits to its own deadline.
  virtual void former_ended(Time now) = 0;
  // A mapped tier is of no more use, for good: whoever asks for a place there is refused from now on, and what lies
  // there counts for nothing, as soon as nobody leases it. More than once is the same.
  virtual void tier_failed(Time now, TierId tier, const Error& why) = 0;
  // Deadlines that have passed, and looks that are due.
  virtual void tick(Time now) = 0;

  // When tick is next needed; kNever if nothing waits.
  virtual Time next_deadline() const = 0;
  // Into one that was taken before, whose memory is used again.
  virtual void take_output(Output& output) = 0;
  Output take_output() {
    Output output;
    take_output(output);
    return output;
  }
  virtual Status status() const = 0;
  // Aborts unless the laws hold (O(everything)): for tests and simulation. Nothing is asked of the lease words of
  // sessions that scribbled over them.
  virtual void check_invariants(std::span<const SessionId> scribbled = {}) const = 0;

 protected:
  // Whether they can be meant, with a catalog of this shape.
  static Result<void> check(const Options& options, const CatalogShape& shape);
};

}  // namespace terrace::engine
