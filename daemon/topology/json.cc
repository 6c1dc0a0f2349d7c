// SPDX-License-Identifier: Apache-2.0
#include "topology/json.h"

#include <nlohmann/json.hpp>
#include <optional>

namespace terrace::topology {
namespace {

using nlohmann::json;

json node_of(const std::optional<unsigned>& numa_node) { return numa_node ? json(*numa_node) : json(nullptr); }

}  // namespace

std::string to_json(const Machine& machine) {
  json object = {
      {"memory_bytes", machine.memory_bytes},
      {"memory_limit_source", machine.memory_limit_source},
      {"memlock_bytes", machine.memlock_bytes == kUnlimited ? json(nullptr) : json(machine.memlock_bytes)},
      {"open_files_max", machine.open_files_max == kUnlimited ? json(nullptr) : json(machine.open_files_max)},
      {"kernel_version", machine.kernel_version},
      {"io_uring", {{"available", machine.io_uring.available}, {"features", machine.io_uring.features}}},
      {"numa_nodes", json::array()},
      {"gpus", json::array()},
      {"block_devices", json::array()}};
  for (const NumaNode& node : machine.numa_nodes)
    object["numa_nodes"].push_back({{"os_index", node.os_index},
                                    {"bytes", node.bytes},
                                    {"cpus", node.cpus},
                                    {"huge_pages", node.huge_pages},
                                    {"huge_pages_free", node.huge_pages_free}});
  for (const Gpu& gpu : machine.gpus)
    object["gpus"].push_back(
        {{"pci_bus_id", gpu.pci_bus_id}, {"name", gpu.name}, {"numa_node", node_of(gpu.numa_node)}});
  for (const BlockDevice& device : machine.block_devices)
    object["block_devices"].push_back({{"name", device.name}, {"numa_node", node_of(device.numa_node)}});
  return object.dump();
}

}  // namespace terrace::topology
