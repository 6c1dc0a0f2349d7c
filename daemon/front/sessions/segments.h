// SPDX-License-Identifier: Apache-2.0
// Segments on their way to the trainers that map them, and back: a session's one, or all that have a part in a share.
#pragma once

#include <cstddef>
#include <map>
#include <span>

#include "base/ids.h"
#include "front/node/node.h"
#include "front/reactor/engine_loop.h"
#include "front/sessions/session.h"
#include "front/sessions/sessions.h"
#include "front/sessions/space.h"
#include "front/survival/keeper.h"
#include "mover/transfer.h"
#include "shm/message.h"
#include "tier/extent.h"

namespace terrace::front {

// The reactor thread's. What is borrowed outlives it.
class Segments {
 public:
  Segments(const Node& node, EngineLoop& loop, Keeper& keeper, Sessions& sessions)
      : node_(node), loop_(loop), keeper_(keeper), sessions_(sessions) {}

  // Of a session, or of a share; a new one where there was none.
  Space& space_of(SessionId id);
  std::map<SessionId, Space>& spaces() { return spaces_; }

  // What the engine wants done: by the mover, once the trainers that map it have let it go.
  void order(const mover::SegmentOrder& order);
  // What the mover has done: the engine hears of it once the supervisor keeps it, and then the trainers.
  void done(const mover::SegmentDone& done);
  // A trainer has unmapped a segment, as it was asked to.
  void retired(Session& session, const shm::SegmentMessage& message);
  // All that a trainer is to map, to one that maps nothing yet.
  void send_all(Session& session);
  // Those that are to go, and that it was asked about.
  void send_retiring(Session& session);
  // A session is gone that had a part in a space: nobody is asked on its behalf any more.
  void left(SessionId session, SessionId space);
  // Nothing is left of a space.
  void gone(SessionId space);

 private:
  void send_retire(Session& session, const mover::SegmentOrder& order);
  void start_retired(SessionId space);
  void deliver(const mover::SegmentDone& done);
  void send_segment(Session& session, std::size_t tier, tier::Extent extent);
  void send_seam(Session& session, std::size_t tier, tier::Extent seam, std::span<const tier::Extent> pieces);

  const Node& node_;
  EngineLoop& loop_;
  Keeper& keeper_;
  Sessions& sessions_;
  std::map<SessionId, Space> spaces_;
};

}  // namespace terrace::front
