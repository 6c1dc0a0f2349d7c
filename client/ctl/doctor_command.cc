// SPDX-License-Identifier: Apache-2.0
#include "ctl/doctor_command.h"

#include <unistd.h>

#include <CLI/CLI.hpp>

#include "ctl/doctor_views.h"
#include "doctor/checks.h"
#include "doctor/node.h"
#include "topology/machine.h"

namespace terrace::ctl {
namespace {

// Where the service's configuration is.
constexpr const char* kUsualConfig = "/etc/terrace/terraced.toml";

int status_of(doctor::Verdict verdict) {
  return verdict == doctor::Verdict::kFailure ? 2 : verdict == doctor::Verdict::kWarning ? 1 : 0;
}

// An empty name is a variable that was not set.
std::string not_empty(const std::string& path) {
  return path.empty() ? "is empty; name a TOML file, or leave it out" : "";
}

}  // namespace

DoctorCommand::DoctorCommand(CLI::App& command) {
  command
      .add_option("--config", config_,
                  std::string("The daemon's TOML file (default: ") + kUsualConfig + " if it is there)")
      ->check(not_empty);
}

Result<Diagnosis> DoctorCommand::run(bool json) const {
  topology::raise_limits();  // as the daemon does it
  const bool is_usual = config_.empty() && ::access(kUsualConfig, F_OK) == 0;
  const auto node = doctor::look_at_node(is_usual ? kUsualConfig : config_);
  if (!node) return std::unexpected(node.error());
  const auto examined = doctor::examine(*node);
  const auto verdict = doctor::verdict_on(examined);
  return Diagnosis{json ? to_json(*node, examined).dump(2) + '\n' : doctor_text(examined), status_of(verdict)};
}

}  // namespace terrace::ctl
