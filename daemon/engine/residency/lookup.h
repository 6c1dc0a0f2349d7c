// SPDX-License-Identifier: Apache-2.0
// Tensors by their handles.
#pragma once

#include <vector>

#include "engine/residency/holdings.h"
#include "engine/residency/marks.h"
#include "engine/residency/records.h"

namespace terrace::engine {

class Lookup {
 public:
  Lookup(Marks& marks, Records& records) : marks_(marks), records_(records) {}

  Result<Slot> find(const Holdings& session, Handle handle) const;
  Result<std::vector<Slot>> find_all(Holdings& session, const std::vector<Handle>& handles);
  // The same into `slots`, whose memory is used again.
  Result<void> find_all(Holdings& session, const std::vector<Handle>& handles, std::vector<Slot>& slots);

 private:
  Marks& marks_;
  Records& records_;
};

}  // namespace terrace::engine
