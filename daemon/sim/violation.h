// SPDX-License-Identifier: Apache-2.0
// A law that did not hold: what the simulator looks for.
#pragma once

#include <stdexcept>
#include <string>

namespace terrace::sim {

// Its message says which law, or which check of the engine's, and of what.
class Violation : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

inline void require(bool holds, const std::string& law) {
  if (!holds) throw Violation(law);
}

// While one lives, a failed TERRACE_CHECK of any thread is a Violation and does not abort.
class ChecksAreViolations {
 public:
  ChecksAreViolations();
  ~ChecksAreViolations();
  ChecksAreViolations(const ChecksAreViolations&) = delete;
  ChecksAreViolations& operator=(const ChecksAreViolations&) = delete;
};

}  // namespace terrace::sim
