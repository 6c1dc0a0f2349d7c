// SPDX-License-Identifier: Apache-2.0
// Who is to be looked at before the engine rests.
#pragma once

#include <vector>

#include "engine/residency/holdings.h"
#include "engine/residency/registry.h"

namespace terrace::engine {

class Wakes {
 public:
  explicit Wakes(Registry& registry) : registry_(registry) {}

  // The session is to be looked at.
  void stir(Holdings& session);
  // Something happened that its waiting admissions may go on by.
  void changed(Holdings& session) {
    ++session.events;
    stir(session);
  }
  void all_changed();
  // Nothing is left of it.
  void forget(const Holdings& session);

  std::vector<Holdings*> stirred;  // null: of which nothing is left
  bool opens = false;              // whoever waits to open is to be looked at

 private:
  Registry& registry_;
};

}  // namespace terrace::engine
