// SPDX-License-Identifier: Apache-2.0
// Upgrade in place: whether the program that would be started next could go on with what this daemon has, asked before
// anything is stopped.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "config/config.h"
#include "service/descriptor_store.h"
#include "terrace/error.h"

namespace terrace::front {

// The option by which a program is asked, with the number of the descriptor that the catalog is open as.
inline constexpr const char* kCheckSuccession = "--check-succession";
// What it answers if it could, and its version after that; exit status 0.
inline constexpr std::string_view kGoesOn = "goes on: terraced ";
// How the supervisor calls the catalog.
inline constexpr const char* kCatalogName = "catalog";

// The identities of the GPUs that were tiers of a former daemon, in their order (topology::go_on_with()); none: nobody
// has sessions of it.
using FormerGpus = std::optional<std::vector<std::uint64_t>>;
// Of the one that left this.
FormerGpus former_gpus(const service::Adopted& adopted);
FormerGpus former_gpus(int catalog);

// The configuration with which a daemon goes on: capacities in percent are what they came to for the sessions that
// `adopted` has; where there are none, `config` itself.
config::Config continued(config::Config config, const service::Adopted& adopted);

// In the program that is asked: whether a daemon of this resolved configuration could go on with the catalog, which
// another one is using. FailedPrecondition says what differs; InvalidArgument: the descriptor is no catalog's.
Result<void> check_succession(const config::Config& config, int catalog);

// In the daemon: starts `command` and asks it; what it answers, its version. Blocks, for some seconds at most.
// FailedPrecondition: it could not go on, in its own words, or cannot be run; DeadlineExceeded.
Result<std::string> ask_successor(std::vector<std::string> command, const Fd& catalog);

}  // namespace terrace::front
