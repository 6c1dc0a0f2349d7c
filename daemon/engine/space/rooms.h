// SPDX-License-Identifier: Apache-2.0
// Room for a demand.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/budget/budget.h"
#include "engine/residency/copies.h"
#include "engine/residency/holders.h"
#include "engine/residency/marks.h"
#include "engine/residency/records.h"
#include "engine/residency/tiers.h"
#include "engine/residency/transfers.h"
#include "engine/residency/words.h"
#include "engine/space/answers.h"
#include "engine/space/demand.h"
#include "engine/space/departures.h"
#include "engine/space/evictions.h"
#include "engine/space/survey.h"
#include "engine/space/windows.h"
#include "engine/steps/course.h"

namespace terrace::engine {

class Rooms {
 public:
  Rooms(Marks& marks, Tiers& tiers, Records& records, Copies& copies, Words& words, Holders& holders,
        Transfers& transfers, Budget& budget, Departures& departures, Windows& windows, Evictions& evictions)
      : marks_(marks),
        tiers_(tiers),
        records_(records),
        copies_(copies),
        words_(words),
        holders_(holders),
        transfers_(transfers),
        budget_(budget),
        departures_(departures),
        windows_(windows),
        evictions_(evictions) {}

  Room make_room(Course& session, Demand& demand, const std::vector<std::uint64_t>& sizes,
                 std::vector<std::uint64_t>& offsets, Error& refusal);
  bool room_is_coming(const Course& session, const Demand& demand) const;
  void drop_wants(Course& session, Demand& demand);
  bool can_stitch(TierId tier) const;
  // A seam is ready, or failed, that was made for `wanted`; null: which is no more. True: that one may go on.
  bool stitched(Course& session, TierId tier, const mover::SegmentDone& done, Demand* wanted);
  bool unstitch_unfit(Course& session, const Demand& demand, const std::vector<std::uint64_t>& sizes);

 private:
  std::uint64_t set_bytes(Course& session, const Demand& demand, std::uint64_t missing_bytes) const;
  Room make_room_by_bytes(Course& session, Demand& demand, std::uint64_t missing_bytes, Error& refusal);
  Room make_room_by_shape(Course& session, Demand& demand, const std::vector<std::uint64_t>& sizes, Error& refusal);
  Choice choice_for(const Course& session, const Demand& demand, std::uint64_t enough_bytes) const;
  Survey survey_for(Course& session, const Demand& demand, std::uint64_t enough_bytes);
  bool make_room_at_once(Course& session, const Demand& demand, std::uint64_t bytes);
  Room wait_for_leases(Course& session, Demand& demand, const Survey& survey, std::uint64_t bytes, Error& refusal);
  static std::vector<std::vector<tier::Extent>> pages_apart(Place& place, const Demand& demand,
                                                            std::vector<std::uint64_t> sizes);
  std::optional<Room> stitch(Course& session, Demand& demand, std::vector<std::uint64_t> sizes, Error& refusal);
  bool give_up_seams(Course& session, TierId tier);

  Marks& marks_;
  Tiers& tiers_;
  Records& records_;
  Copies& copies_;
  Words& words_;
  Holders& holders_;
  Transfers& transfers_;
  Budget& budget_;
  Departures& departures_;
  Windows& windows_;
  Evictions& evictions_;
};

}  // namespace terrace::engine
