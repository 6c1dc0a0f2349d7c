// SPDX-License-Identifier: Apache-2.0
#include "doctor/finding.h"

#include <utility>

#include "base/check.h"

namespace terrace::doctor {

std::string_view name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kNotApplicable:
      return "does not apply";
    case Verdict::kOk:
      return "ok";
    case Verdict::kWarning:
      return "warning";
    case Verdict::kFailure:
      return "failure";
  }
  check_failed("a Verdict", __FILE__, __LINE__);
}

Finding ok(std::string reason, std::string subject) {
  return {Verdict::kOk, std::move(reason), {}, std::move(subject)};
}

Finding warning(std::string reason, std::string mend, std::string subject) {
  return {Verdict::kWarning, std::move(reason), std::move(mend), std::move(subject)};
}

Finding failure(std::string reason, std::string mend, std::string subject) {
  return {Verdict::kFailure, std::move(reason), std::move(mend), std::move(subject)};
}

Finding not_applicable(std::string reason) { return {Verdict::kNotApplicable, std::move(reason), {}, {}}; }

}  // namespace terrace::doctor
