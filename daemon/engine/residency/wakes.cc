// SPDX-License-Identifier: Apache-2.0
#include "engine/residency/wakes.h"

namespace terrace::engine {

void Wakes::stir(Holdings& session) {
  if (session.stirred) return;
  session.stirred = true;
  stirred.push_back(&session);
}

void Wakes::all_changed() {
  for (auto& [id, session] : registry_.all) changed(*session);
}

void Wakes::forget(const Holdings& session) {
  for (Holdings*& one : stirred)
    if (one == &session) one = nullptr;
}

}  // namespace terrace::engine
