// SPDX-License-Identifier: Apache-2.0
// Requests without their replies: each gets exactly one, by its deadline.
#pragma once

#include <optional>
#include <set>
#include <utility>

#include "base/id_map.h"
#include "engine/requests/waiting.h"
#include "engine/values/options.h"
#include "engine/values/request.h"
#include "engine/values/turn.h"

namespace terrace::engine {

class Requests {
 public:
  Requests(const Options& options, Turn& turn) : options_(options), turn_(turn) {}

  void answer(RequestId request, Result<ReplyBody> result);
  bool wait_for(RequestId request, SessionId session, Time deadline, bool close = false);

  std::size_t size() const { return waiting_.size(); }
  const Waiting* find(RequestId request) const { return waiting_.find(request); }
  // The first deadline, and whose it is; none: nobody's.
  std::optional<std::pair<Time, RequestId>> first_deadline() const {
    return deadlines_.empty() ? std::nullopt : std::optional(*deadlines_.begin());
  }
  // Aborts unless whoever waits is looked at by its deadline.
  void check_invariants() const;

 private:
  const Options& options_;
  Turn& turn_;
  IdMap<RequestId, Waiting> waiting_;
  std::set<std::pair<Time, RequestId>> deadlines_;
};

}  // namespace terrace::engine
