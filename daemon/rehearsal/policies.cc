// SPDX-License-Identifier: Apache-2.0
#include "rehearsal/policies.h"

#include <algorithm>

namespace terrace::rehearsal {

std::optional<PolicyKind> policy_of(std::string_view name) {
  const auto found = std::ranges::find(kPolicyNames, name);
  if (found == kPolicyNames.end()) return std::nullopt;
  return static_cast<PolicyKind>(found - kPolicyNames.begin());
}

}  // namespace terrace::rehearsal
