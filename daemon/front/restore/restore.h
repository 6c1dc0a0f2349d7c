// SPDX-License-Identifier: Apache-2.0
// How a daemon goes on for a former one (DESIGN decision 8): at start it takes back what that left with the supervisor,
// and each session goes on when its trainer is back (Arrivals).
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/ids.h"
#include "config/config.h"
#include "engine/engine.h"
#include "front/node/failures.h"
#include "front/node/node.h"
#include "front/reactor/engine_loop.h"
#include "front/sessions/rings.h"
#include "front/sessions/segments.h"
#include "front/sessions/sessions.h"
#include "front/sessions/space.h"
#include "front/survival/block_return.h"
#include "front/survival/catalog_home.h"
#include "front/survival/keeper.h"
#include "service/descriptor_store.h"
#include "terrace/error.h"

namespace terrace::front {

// Used once, at start, and done with.
class Restore {
 public:
  struct Surroundings {
    const config::Config& config;
    Node& node;
    EngineLoop& loop;
    Keeper& keeper;
    CatalogHome& home;
    BlockReturn& block;
    Failures& failures;
    Sessions& sessions;
    Segments& segments;
    Rings& rings;
  };
  Restore(const Surroundings& surroundings, service::Adopted adopted)
      : around_(surroundings), adopted_(std::move(adopted)) {}

  // The engine begins, with the catalog that was left, or with one of its own. Errors name what cannot be gone on with;
  // the supervisor then still has everything.
  Result<void> make_engine();
  // Sessions that were taken back are watched: their processes, and their doorbells.
  Result<void> watch_sessions();

 private:
  // restore.cc: the catalog, and sessions.
  Result<void> begin_afresh(const engine::CatalogShape& shape);
  Result<void> go_on();
  void drop_what_is_left(const engine::Status& status);
  void take_back_all(std::vector<engine::Survivor>& survivors);
  Result<Session*> take_back(const engine::SessionRecord& was);

  // segments.cc: their memory.
  Result<void> take_back_segments(const engine::SessionRecord& was);
  Result<void> take_back_segment(SessionId id, std::size_t tier, tier::Extent extent, Space& space);
  Result<void> take_back_seams(SessionId id, Space& space);
  void lose_segment(engine::LostSegment segment, Fd kept);

  // stakes.cc: what a GPU cannot take back just now.
  std::map<SessionId, std::vector<pid_t>> living() const;
  Result<void> require_gpus(std::span<const engine::Survivor> survivors);
  std::vector<std::string> not_taken_back() const;

  const Surroundings around_;
  service::Adopted adopted_;  // what was not taken back yet
  std::vector<engine::LostSegment> lost_segments_;
  std::vector<engine::LostSegment> not_yet_;  // those of them that may be taken back later
};

}  // namespace terrace::front
