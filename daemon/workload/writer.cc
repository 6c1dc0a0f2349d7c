// SPDX-License-Identifier: Apache-2.0
#include "workload/writer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <ostream>

namespace terrace::workload {
namespace {

std::string quoted(const std::string& text) { return nlohmann::json(text).dump(); }

// "197.632": whole nanoseconds.
std::string microseconds(Duration time) {
  const auto nanoseconds = time.count();
  if (nanoseconds % 1000 == 0) return fmt::format("{}", nanoseconds / 1000);
  return fmt::format("{}.{:03}", nanoseconds / 1000, nanoseconds % 1000);
}

void write(const Tensor& tensor, std::size_t id, std::ostream& out) {
  out << fmt::format(R"({{"tensor":{},"bytes":{},"class":"{}","home":{})", id, tensor.bytes, name(tensor.tensor_class),
                     tensor.home);
  if (!tensor.key.empty()) out << R"(,"key":)" << quoted(tensor.key);
  out << "}\n";
}

void write(const Run& run, std::ostream& out) {
  out << fmt::format(R"({{"run":{},"us":{},"place":"{}","read":[{}],"write":[{}],"free":[{}]}})", quoted(run.name),
                     microseconds(run.compute), name(run.place), fmt::join(run.read, ","), fmt::join(run.write, ","),
                     fmt::join(run.free, ","))
      << '\n';
}

}  // namespace

void write(const Workload& workload, std::ostream& out) {
  out << fmt::format(R"({{"workload":{},"version":1,"source":{}}})", quoted(workload.name), quoted(workload.source))
      << '\n';
  for (std::size_t id = 0; id < workload.tensors.size(); ++id) write(workload.tensors[id], id, out);
  for (std::size_t step = 0; step < workload.steps.size(); ++step) {
    for (const Run& run : workload.runs_of(step)) write(run, out);
    const StepKind kind = workload.steps[step].kind;
    out << (kind == StepKind::kTrain ? R"({"step":true})" : fmt::format(R"({{"step":true,"kind":"{}"}})", name(kind)))
        << '\n';
  }
}

}  // namespace terrace::workload
