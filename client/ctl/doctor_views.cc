// SPDX-License-Identifier: Apache-2.0
#include "ctl/doctor_views.h"

#include <fmt/format.h>

#include <algorithm>

namespace terrace::ctl {
namespace {

using doctor::Examined;
using doctor::Verdict;

// As wide as the longest verdict, and the longest name of a check.
constexpr int kVerdictWidth = 14;
constexpr int kNameWidth = 22;

std::ptrdiff_t count(std::span<const Examined> examined, Verdict verdict) {
  return std::ranges::count_if(examined, [verdict](const Examined& each) { return each.finding.verdict == verdict; });
}

nlohmann::ordered_json text_or_null(const std::string& text) {
  return text.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(text);
}

}  // namespace

std::string doctor_text(std::span<const Examined> examined) {
  std::string text;
  for (const auto& [check, finding] : examined) {
    const std::string subject = finding.subject.empty() ? "" : finding.subject + ": ";
    text += fmt::format("{:<{}}  {:<{}}  {}{}\n", doctor::name(finding.verdict), kVerdictWidth, check, kNameWidth,
                        subject, finding.reason);
    if (!finding.mend.empty())
      text += fmt::format("{:>{}}  {}\n", "mend:", kVerdictWidth + kNameWidth + 2, finding.mend);
  }
  const auto warnings = count(examined, Verdict::kWarning);
  const auto failures = count(examined, Verdict::kFailure);
  return text + fmt::format("{} ok, {} warning{}, {} failure{}, {} not applicable\n", count(examined, Verdict::kOk),
                            warnings, warnings == 1 ? "" : "s", failures, failures == 1 ? "" : "s",
                            count(examined, Verdict::kNotApplicable));
}

nlohmann::ordered_json to_json(const doctor::Node& node, std::span<const Examined> examined) {
  auto findings = nlohmann::ordered_json::array();
  for (const auto& [check, finding] : examined)
    findings.push_back({{"check", check},
                        {"subject", text_or_null(finding.subject)},
                        {"verdict", doctor::name(finding.verdict)},
                        {"reason", finding.reason},
                        {"mend", text_or_null(finding.mend)}});
  return {{"version", kDoctorVersion},
          {"configuration", text_or_null(node.config_file)},
          {"verdict", doctor::name(doctor::verdict_on(examined))},
          {"findings", std::move(findings)}};
}

}  // namespace terrace::ctl
