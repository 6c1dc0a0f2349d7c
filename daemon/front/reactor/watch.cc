// SPDX-License-Identifier: Apache-2.0
#include "front/reactor/watch.h"

#include <poll.h>

namespace terrace::front {

Result<std::unique_ptr<Watch>> Watch::create(mover::Ring& ring, int descriptor, unsigned events, Ready ready) {
  std::unique_ptr<Watch> watch(new Watch(ring, std::move(ready)));
  const auto poll = ring.poll(descriptor, events, *watch);
  if (!poll) return std::unexpected(poll.error());
  watch->poll_ = *poll;
  return watch;
}

void Watch::completed(int result, bool more) {
  if (!more) poll_ = mover::PollId::kNone;
  ready_(result < 0 ? POLLERR : static_cast<unsigned>(result));
}

}  // namespace terrace::front
