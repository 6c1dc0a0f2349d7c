// SPDX-License-Identifier: Apache-2.0
// terracectl doctor: what makes this node slow, or keeps a daemon from running on it. It asks no daemon.
#pragma once

#include <string>

#include "terrace/error.h"

namespace CLI {  // NOLINT(readability-identifier-naming): the library's
class App;
}

namespace terrace::ctl {

struct Diagnosis {
  std::string text;  // for people, or JSON
  int status = 0;    // that the program ends with: 0 all is well, 1 warnings, 2 failures
};

class DoctorCommand {
 public:
  // Adds its options to the command `doctor`; must stay where it is until the command line is parsed.
  explicit DoctorCommand(CLI::App& command);
  DoctorCommand(const DoctorCommand&) = delete;
  DoctorCommand& operator=(const DoctorCommand&) = delete;
  ~DoctorCommand() = default;

  // An error: the machine could not be looked at.
  Result<Diagnosis> run(bool json) const;

 private:
  std::string config_;
};

}  // namespace terrace::ctl
