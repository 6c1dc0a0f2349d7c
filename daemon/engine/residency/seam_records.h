// SPDX-License-Identifier: Apache-2.0
// Which of a session's records of seams in the catalog are free.
#pragma once

#include <cstdint>
#include <vector>

#include "base/check.h"
#include "engine/catalog/records.h"

namespace terrace::engine {

// The lowest that were never taken go out last: records that nobody needs take no page.
class SeamRecords {
 public:
  std::size_t free() const { return given_back_.size() + kSeamPiecesMax - taken_; }
  // Aborts where none is free.
  std::uint32_t take() {
    TERRACE_CHECK(free() > 0);
    if (given_back_.empty()) return taken_++;
    const std::uint32_t record = given_back_.back();
    given_back_.pop_back();
    return record;
  }
  void give_back(std::uint32_t record) { given_back_.push_back(record); }
  // Takes this very one; called in ascending order, before anything else.
  void take_this(std::uint32_t record) {
    while (taken_ < record) given_back_.push_back(taken_++);
    TERRACE_CHECK(taken_++ == record);
  }

 private:
  std::vector<std::uint32_t> given_back_;
  std::uint32_t taken_ = 0;  // those below were taken at some time
};

}  // namespace terrace::engine
