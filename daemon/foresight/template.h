// SPDX-License-Identifier: Apache-2.0
// What steps of one kind have in common: the uses of tensors in their order, with the compute time between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "shm/word.h"

namespace terrace::foresight {

struct TemplateUse {
  Slot slot{};
  std::uint32_t place = 0;
  shm::Mode mode = shm::Mode::kRead;
  bool dies = false;       // its content goes before anybody uses it again
  std::uint8_t trust = 0;  // how often it was there lately; below kTrusted it is not planned with
  std::uint64_t bytes = 0;
  std::int64_t at_ns = 0;  // of compute, from the beginning of the step
  bool reads() const { return mode != shm::Mode::kOverwrite; }
  bool writes() const { return mode != shm::Mode::kRead; }
};

// Uses that begin within are of one set, in whatever order they were seen.
inline constexpr std::int64_t kOneSetNs = 1'000;

// Of a step: a longer one is not learned.
inline constexpr std::size_t kUsesMax = 2'000'000;

inline constexpr std::uint8_t kTrusted = 2;
inline constexpr std::uint8_t kTrustMax = 4;

// How a step compares with what was expected of it.
struct Match {
  std::uint64_t matched = 0;
  std::uint64_t missed = 0;  // expected, and not there
  std::uint64_t added = 0;   // there, and not expected
};

struct Template {
  std::uint64_t version = 0;  // of the order: other times alone do not change it
  std::int64_t period_ns = 0;
  std::vector<TemplateUse> uses;
  Match last_match{};  // of the last step of the kind

  // One more step of the kind. Insertions, deletions and reorderings are found; the rest stays known.
  Match learn(std::vector<TemplateUse> step, std::int64_t period_ns);
};

}  // namespace terrace::foresight
