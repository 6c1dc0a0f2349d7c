// SPDX-License-Identifier: Apache-2.0
// One line of a workload file: a JSON object, field by field. Internal to workload; keeps the JSON library out of every
// other header.
#pragma once

#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/time.h"
#include "terrace/error.h"
#include "workload/workload.h"

namespace terrace::workload {

inline std::unexpected<Error> refuse(std::string message) {
  return fail(ErrorCode::kInvalidArgument, std::move(message));
}

// Every error is an InvalidArgument that says what is wrong with the line and what would be right.
class Record {
 public:
  // An object without a name that stands in it twice, and nothing behind it.
  static Result<Record> parse(std::string_view line);

  Record(Record&&) noexcept;
  Record& operator=(Record&&) noexcept;
  Record(const Record&) = delete;
  Record& operator=(const Record&) = delete;
  ~Record();

  bool has(std::string_view field) const;
  // Refuses every field that is not of `known`.
  Result<void> only(std::initializer_list<std::string_view> known) const;

  // The field must be there, and of that type.
  Result<std::string> text(std::string_view field) const;
  Result<bool> flag(std::string_view field) const;
  Result<std::uint64_t> integer(std::string_view field, std::uint64_t min, std::uint64_t max) const;
  Result<Duration> microseconds(std::string_view field) const;
  // Index into `allowed`.
  Result<std::size_t> one_of(std::string_view field, std::span<const std::string_view> allowed) const;
  // Ids below `declared`, each once.
  Result<std::vector<TensorId>> ids(std::string_view field, std::size_t declared) const;

 private:
  struct Object;
  explicit Record(std::unique_ptr<Object> object);

  std::unique_ptr<Object> object_;
};

}  // namespace terrace::workload
