// SPDX-License-Identifier: Apache-2.0
// What moves a tensor, and how it comes to rest.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/links/links.h"
#include "engine/residency/copies.h"
#include "engine/residency/holdings.h"
#include "engine/residency/records.h"
#include "engine/residency/tiers.h"
#include "engine/residency/wakes.h"
#include "engine/residency/words.h"
#include "engine/values/turn.h"

namespace terrace::engine {

// Unlike bytes that came, and were not those that were written.
inline bool is_of_the_device(const Error& error) {
  return error.code != ErrorCode::kDataLoss || error.system_error != 0;
}

class Transfers {
 public:
  Transfers(Turn& turn, Links& links, Tiers& tiers, Wakes& wakes, Records& records, Copies& copies, Words& words)
      : turn_(turn), links_(links), tiers_(tiers), wakes_(wakes), records_(records), copies_(copies), words_(words) {}

  void start(Holdings& session, Slot slot, Flight flight, Urgency urgency);
  // A transfer is complete, well or not: the tensor is idle.
  void ended(Holdings& session, const Flight& flight);
  // A former daemon's reads have landed.
  void landed(Holdings& session, Slot slot);
  std::optional<Flight> withdraw(Holdings& session, Slot slot, Activity activity);
  bool withdraw_clean(Holdings& session, Slot slot);
  void give_up_clean(Holdings& session, Slot slot);
  bool may_move(const Tensor& tensor) const;
  bool may_clean(const Holdings& session, Slot slot, const Tensor& tensor, Level level) const;
  bool start_clean(Holdings& session, Slot slot, Level level, Level target);
  void rest(Holdings& session, Slot slot);
  void count_failure(const Error& error, TierId failed);
  void block_failed(Tensor& tensor, const Flight& flight, const Error& error);
  void prove_home(Holdings& session, Slot slot);
  void hold_block(bool hold);
  void start_slide(Holdings& session, Slot slot, Level level, std::uint64_t new_offset);
  void slide_on(Holdings& session, Slot slot);
  void slid(Holdings& session, Slot slot, const Result<void>& result);
  void give_up_gone(Holdings& session, Slot slot);
  void give_up_ended(Holdings& session);

 private:
  void await_gone(Holdings& session, Slot slot);

  Turn& turn_;
  Links& links_;
  Tiers& tiers_;
  Wakes& wakes_;
  Records& records_;
  Copies& copies_;
  Words& words_;
};

}  // namespace terrace::engine
