// SPDX-License-Identifier: Apache-2.0
// terracectl upgrade: has the daemon replaced by the program that now lies in its place, and waits until that one
// serves.
#pragma once

#include <string>

#include "ctl/connection.h"
#include "terrace/error.h"

namespace terrace::ctl {

struct UpgradeOptions {
  bool check_only = false;
  bool json = false;
};

// What came of it, to print. Errors are the daemon's (nothing was stopped then); Unavailable: the next daemon did not
// serve within a minute, with the last thing that was heard.
Result<std::string> upgrade(Connection& connection, const UpgradeOptions& options);

}  // namespace terrace::ctl
