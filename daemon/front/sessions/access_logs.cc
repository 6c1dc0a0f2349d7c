// SPDX-License-Identifier: Apache-2.0
#include "front/sessions/access_logs.h"

#include "shm/log.h"

namespace terrace::front {

void AccessLogs::drain(Session& session) {
  if (!session.region || session.state != Session::State::kOpen) return;
  accesses_.clear();
  if (asks_when_) stamps_.see(shm::stamp_now(), loop_.now());  // nobody else asks when a lease was taken
  const std::uint64_t fast_leases = session.region->drain_logs(stamps_, accesses_);
  if (fast_leases != 0) loop_.engine().accessed(loop_.now(), session.id, accesses_, fast_leases);
}

}  // namespace terrace::front
