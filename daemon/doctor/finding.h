// SPDX-License-Identifier: Apache-2.0
// What a check of a node found, as values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace terrace::doctor {

// From the best to the worst, so that the verdict on several is the greatest.
enum class Verdict : std::uint8_t { kNotApplicable, kOk, kWarning, kFailure };

// "does not apply", "ok", "warning", "failure": as people and programs read them.
std::string_view name(Verdict verdict);

struct Finding {
  Verdict verdict = Verdict::kNotApplicable;
  std::string reason;     // what was seen, and what it does to a node
  std::string mend{};     // the command, or the line of a unit, that mends it; empty: nothing is to be mended
  std::string subject{};  // the path, drive or GPU that it is about; empty: the node
};

using Findings = std::vector<Finding>;

Finding ok(std::string reason, std::string subject = {});
Finding warning(std::string reason, std::string mend, std::string subject = {});
Finding failure(std::string reason, std::string mend, std::string subject = {});
Finding not_applicable(std::string reason);

}  // namespace terrace::doctor
