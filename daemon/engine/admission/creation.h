// SPDX-License-Identifier: Apache-2.0
// Tensors are created.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/admission/grants.h"
#include "engine/admission/session.h"
#include "engine/requests/requests.h"
#include "engine/residency/block_space.h"
#include "engine/residency/copies.h"
#include "engine/residency/lives.h"
#include "engine/residency/records.h"
#include "engine/residency/registry.h"
#include "engine/residency/tiers.h"
#include "engine/space/rooms.h"
#include "engine/values/options.h"

namespace terrace::engine {

// What is reserved for tensors that are created: on the block tier, or else in the tier above.
struct Homes {
  std::vector<tier::Pieces> pieces;
  std::vector<std::uint64_t> checksums;
  std::vector<std::uint64_t> offsets;
};

class Creation {
 public:
  Creation(const Options& options, BlockSpace& block, Registry& registry, Requests& requests, Tiers& tiers,
           Records& records, Copies& copies, Lives& lives, Rooms& rooms, Grants& grants)
      : options_(options),
        block_(block),
        registry_(registry),
        requests_(requests),
        tiers_(tiers),
        records_(records),
        copies_(copies),
        lives_(lives),
        rooms_(rooms),
        grants_(grants) {}

  Result<void> check_specs(const Session& session, const std::vector<TensorSpec>& specs) const;
  void try_create(Session& session, Admission& admission);

 private:
  Result<void> check_spec(const TensorSpec& spec, std::uint64_t all_bytes) const;
  Result<void> check_home(const Session& session, const std::vector<TensorSpec>& specs) const;
  std::uint64_t capacity_for(std::uint64_t bytes) const;
  Result<void> reserve_on_block(const std::vector<TensorSpec>& specs, std::vector<tier::Pieces>& pieces,
                                std::vector<std::uint64_t>& checksums);
  Result<bool> reserve_homes(Session& session, Admission& admission, Homes& homes);

  const Options& options_;
  BlockSpace& block_;
  Registry& registry_;
  Requests& requests_;
  Tiers& tiers_;
  Records& records_;
  Copies& copies_;
  Lives& lives_;
  Rooms& rooms_;
  Grants& grants_;
};

}  // namespace terrace::engine
