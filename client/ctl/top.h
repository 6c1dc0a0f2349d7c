// SPDX-License-Identifier: Apache-2.0
// `terracectl top`: the node, live.
#pragma once

#include "ctl/connection.h"
#include "terrace/error.h"

namespace terrace::ctl {

struct TopOptions {
  double interval_seconds = 1;
  bool once = false;  // one screen, totals instead of rates, and done
  bool json = false;  // a JSON object a line instead of a screen
};

// Draws until it is interrupted, the daemon is gone or nobody reads any more.
Result<void> run_top(Connection& connection, const TopOptions& options);

}  // namespace terrace::ctl
