// SPDX-License-Identifier: Apache-2.0
#include "made_workloads.h"

namespace terrace::rehearsal {

using workload::Place;
using workload::Run;
using workload::TensorId;
using workload::Workload;

workload::Workload loop(std::uint32_t tensors, std::uint64_t bytes, Duration compute, Place place, bool writes) {
  Workload made;
  made.name = "loop";
  for (TensorId tensor = 0; tensor < tensors; ++tensor) {
    made.tensors.push_back({.bytes = bytes, .home = true});
    Run run;
    run.compute = compute;
    run.place = place;
    run.read = {tensor};
    if (writes) run.write = {tensor};
    made.runs.push_back(std::move(run));
  }
  made.steps.push_back({.end = made.runs.size()});
  return made;
}

workload::Workload training(std::uint32_t layers, std::uint64_t weight_bytes, std::uint64_t activation_bytes,
                            Duration compute) {
  Workload made;
  made.name = "training";
  for (std::uint32_t layer = 0; layer < layers; ++layer) made.tensors.push_back({.bytes = weight_bytes, .home = true});
  for (std::uint32_t layer = 0; layer < layers; ++layer) made.tensors.push_back({.bytes = activation_bytes});
  for (TensorId layer = 0; layer < layers; ++layer) {
    Run run;
    run.compute = compute;
    run.read = {layer};
    if (layer > 0) run.read.push_back(layers + layer - 1);
    run.write = {layers + layer};
    made.runs.push_back(std::move(run));
  }
  for (TensorId layer = layers; layer-- > 0;) {
    Run run;
    run.compute = compute * 2;
    run.read = {layer, layers + layer};
    run.write = {layer};
    run.free = {layers + layer};
    made.runs.push_back(std::move(run));
  }
  made.steps.push_back({.end = made.runs.size()});
  return made;
}

workload::Node node_of(std::uint64_t hbm_bytes, std::uint64_t host_bytes, std::uint64_t block_bytes,
                       std::uint64_t bytes_per_s) {
  workload::Node node;
  node.name = "made";
  node.hbm_bytes = hbm_bytes;
  node.host_bytes = host_bytes;
  node.block_bytes = block_bytes;
  node.hbm = {.in_bytes_per_s = bytes_per_s, .out_bytes_per_s = bytes_per_s, .latency = std::chrono::microseconds(20)};
  if (block_bytes > 0) node.block = node.hbm;
  return node;
}

}  // namespace terrace::rehearsal
