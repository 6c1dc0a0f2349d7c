// SPDX-License-Identifier: Apache-2.0
// terracectl init: a first configuration for this machine. It asks no daemon.
#pragma once

#include <string>
#include <vector>

#include "proposal/proposal.h"
#include "terrace/error.h"

namespace CLI {  // NOLINT(readability-identifier-naming): the library's
class App;
}

namespace terrace::ctl {

class InitCommand {
 public:
  // Adds its options to the command `init`; must stay where it is until the command line is parsed.
  explicit InitCommand(CLI::App& command);
  InitCommand(const InitCommand&) = delete;
  InitCommand& operator=(const InitCommand&) = delete;
  ~InitCommand() = default;

  // The configuration, or, after it was written to --output, where it is. InvalidArgument for an option that cannot be,
  // AlreadyExists for an output that is there.
  Result<std::string> run(bool json) const;

 private:
  Result<proposal::Wishes> wishes() const;

  std::string output_;
  bool force_ = false;
  std::string memory_;
  std::vector<std::string> block_;
  std::string block_capacity_;
  std::string sockets_;
  std::string metrics_;
  const CLI::App& command_;
};

}  // namespace terrace::ctl
