// SPDX-License-Identifier: Apache-2.0
#include "workload/reader.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>

#include "topology/text_file.h"
#include "workload/content.h"
#include "workload/record.h"

namespace terrace::workload {
namespace {

constexpr std::uint64_t kVersion = 1;

// Takes the lines of a file one after another. Errors are without the line's number.
class Reading {
 public:
  explicit Reading(const Node* node) : node_(node) {}

  Result<void> take(std::string_view line) {
    Result<Record> record = Record::parse(line);
    if (!record) return std::unexpected(record.error());
    if (first_) {
      first_ = false;
      return take_header(*record);
    }
    if (record->has("tensor")) return take_tensor(*record);
    if (record->has("run")) return take_run(*record);
    if (record->has("step")) return take_step(*record);
    return refuse("is no record; a record has \"tensor\", \"run\" or \"step\"");
  }

  // After the last line: what is wrong with the file as a whole.
  Result<void> end() const {
    if (first_) return refuse("there is no header; the first line names the workload");
    if (workload_.steps.empty() || workload_.steps.back().end != workload_.runs.size()) {
      return refuse("the file ends within a step; the last line is {\"step\":true}");
    }
    return {};
  }

  // What run `index` does to content when the file is repeated: runs in order, after end().
  Result<void> repeat(std::size_t index) {
    const Result<void> followed = content_.follow(workload_.runs[index]);
    if (followed) return followed;
    return refuse("when the file is repeated, this run " + followed.error().message);
  }

  Workload& workload() { return workload_; }

 private:
  Result<void> take_header(const Record& record);
  Result<void> take_tensor(const Record& record);
  Result<void> take_run(const Record& record);
  Result<void> take_step(const Record& record);
  Result<void> check_fits(const Run& run) const;

  const Node* node_;
  Workload workload_;
  Content content_;
  std::uint64_t bytes_ = 0;  // of all tensors
  Duration compute_{};       // of all runs
  bool first_ = true;
};

// Puts what was read where it belongs, or the error where that belongs.
template <typename T, typename U>
bool put(Result<T>&& value, U& into, Result<void>& problem) {
  if (value) {
    into = static_cast<U>(*std::move(value));
    return true;
  }
  problem = std::unexpected(value.error());
  return false;
}

Result<void> Reading::take_header(const Record& record) {
  if (!record.has("workload"))
    return refuse("is no header; the first line has \"workload\", \"version\" and \"source\"");
  Result<void> result = record.only({"workload", "version", "source"});
  std::uint64_t version = 0;
  if (!result || !put(record.text("workload"), workload_.name, result) ||
      !put(record.integer("version", kVersion, kVersion), version, result) ||
      !put(record.text("source"), workload_.source, result)) {
    return result;
  }
  return {};
}

Result<void> Reading::take_tensor(const Record& record) {
  Result<void> result = record.only({"tensor", "bytes", "class", "home", "key"});
  const std::size_t next = workload_.tensors.size();
  std::uint64_t id = 0;
  Tensor tensor;
  if (!result || !put(record.integer("tensor", 0, UINT32_MAX), id, result) ||
      !put(record.integer("bytes", 1, kWorkloadBytesMax), tensor.bytes, result) ||
      !put(record.one_of("class", kClassNames), tensor.tensor_class, result) ||
      !put(record.flag("home"), tensor.home, result) ||
      (record.has("key") && !put(record.text("key"), tensor.key, result))) {
    return result;
  }
  if (id != next) return refuse(fmt::format("\"tensor\" is {}; ids are dense, and the next one is {}", id, next));
  bytes_ += tensor.bytes;
  if (bytes_ > kWorkloadBytesMax) {
    return refuse(
        fmt::format("the tensors have {} bytes together; at most {} are possible", bytes_, kWorkloadBytesMax));
  }
  content_.declare(tensor.home);
  workload_.tensors.push_back(std::move(tensor));
  return {};
}

Result<void> Reading::take_run(const Record& record) {
  Result<void> result = record.only({"run", "us", "place", "read", "write", "free"});
  const std::size_t declared = workload_.tensors.size();
  Run run;
  if (!result || !put(record.text("run"), run.name, result) || !put(record.microseconds("us"), run.compute, result) ||
      !put(record.one_of("place", kPlaceNames), run.place, result) ||
      !put(record.ids("read", declared), run.read, result) || !put(record.ids("write", declared), run.write, result) ||
      !put(record.ids("free", declared), run.free, result)) {
    return result;
  }
  compute_ += run.compute;
  if (compute_ > kWorkloadComputeMax) return refuse("with this run, the file computes for longer than a year");
  if (const Result<void> followed = content_.follow(run); !followed) {
    return refuse("this run " + followed.error().message);
  }
  result = check_fits(run);
  workload_.runs.push_back(std::move(run));
  return result;
}

Result<void> Reading::take_step(const Record& record) {
  Result<void> result = record.only({"step", "kind"});
  bool step = false;
  StepKind kind = StepKind::kTrain;
  if (!result || !put(record.flag("step"), step, result) ||
      (record.has("kind") && !put(record.one_of("kind", kStepKindNames), kind, result))) {
    return result;
  }
  if (!step) return refuse("\"step\" is false; it must be true");
  const std::size_t begin = workload_.steps.empty() ? 0 : workload_.steps.back().end;
  if (begin == workload_.runs.size()) return refuse("a step ends here that has no run");
  workload_.steps.push_back({.kind = kind, .end = workload_.runs.size()});
  return {};
}

Result<void> Reading::check_fits(const Run& run) const {
  if (node_ == nullptr) return {};
  const std::uint64_t needed = leased_bytes(workload_, run);
  const std::uint64_t capacity = node_->capacity_bytes(run.place);
  if (needed <= capacity) return {};
  return refuse(
      fmt::format("this run needs {} bytes in {} at once, which has {} on node {}; take a larger node, or a "
                  "smaller batch",
                  needed, name(run.place), capacity, node_->name));
}

std::unexpected<Error> at(std::string_view source, std::size_t line, const Error& error) {
  return refuse(fmt::format("{}:{}: {}", source, line, error.message));
}

}  // namespace

Result<Workload> read(std::string_view text, std::string_view source, const Node* node) {
  Reading reading(node);
  std::vector<std::size_t> line_of_run;
  std::size_t line = 0;
  while (!text.empty()) {
    ++line;
    const std::size_t length = text.find('\n');
    const Result<void> taken = reading.take(text.substr(0, length));
    if (!taken) return at(source, line, taken.error());
    if (reading.workload().runs.size() > line_of_run.size()) line_of_run.push_back(line);
    text.remove_prefix(length == std::string_view::npos ? text.size() : length + 1);
  }
  if (const Result<void> ended = reading.end(); !ended) return at(source, line + 1, ended.error());
  for (std::size_t run = 0; run < line_of_run.size(); ++run) {
    const Result<void> repeated = reading.repeat(run);
    if (!repeated) return at(source, line_of_run[run], repeated.error());
  }
  return std::move(reading.workload());
}

Result<Workload> load(const std::string& path, const Node* node) {
  const std::expected<std::string, int> text = topology::read_text(path);
  if (text) return read(*text, path, node);
  const int error = text.error();
  const ErrorCode code = error == ENOENT   ? ErrorCode::kNotFound
                         : error == EACCES ? ErrorCode::kPermissionDenied
                                           : ErrorCode::kInvalidArgument;
  return fail(code,
              fmt::format("{}: the workload cannot be read: {}; name a readable file of JSON Lines", path,
                          std::strerror(error)),
              error);
}

}  // namespace terrace::workload
