// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <hwloc.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <numeric>
#include <set>

#include "topology/io_uring_probe.h"
#include "topology/machine.h"
#include "topology/memory_limit.h"
#include "topology/text_file.h"

namespace terrace::topology {
namespace {

constexpr unsigned kNvidia = 0x10de;
constexpr unsigned kVgaController = 0x0300;
constexpr unsigned k3dController = 0x0302;

using Topology = std::unique_ptr<std::remove_pointer_t<hwloc_topology_t>, decltype(&::hwloc_topology_destroy)>;

Result<Topology> load(const Sources& sources) {
  hwloc_topology_t raw = nullptr;
  if (::hwloc_topology_init(&raw) != 0) return fail(ErrorCode::kInternal, "hwloc cannot be initialised", errno);
  Topology topology(raw, &::hwloc_topology_destroy);
  // Backends that load a GPU driver or talk to an X server have no business in a daemon's start; PCI says enough.
  for (const char* backend : {"cuda", "nvml", "opencl", "rsmi", "levelzero", "gl"}) {
    ::hwloc_topology_set_components(raw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, backend);
  }
  if (!sources.hwloc_xml.empty() && ::hwloc_topology_set_xml(raw, sources.hwloc_xml.c_str()) != 0) {
    return fail(
        ErrorCode::kInternal,
        fmt::format("{} is not a topology that hwloc can read; export one with \"lstopo x.xml\"", sources.hwloc_xml),
        errno);
  }
  ::hwloc_topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  if (::hwloc_topology_load(raw) != 0) {
    return fail(ErrorCode::kInternal, fmt::format("hwloc cannot read the topology: {}", std::strerror(errno)), errno);
  }
  return topology;
}

std::vector<unsigned> indices(hwloc_const_bitmap_t bitmap) {
  std::vector<unsigned> result;
  if (bitmap == nullptr) return result;
  for (int i = ::hwloc_bitmap_first(bitmap); i >= 0; i = ::hwloc_bitmap_next(bitmap, i)) {
    result.push_back(static_cast<unsigned>(i));
  }
  return result;
}

// hwloc sees less memory than there is on some virtual machines: the kernel's own number for the node counts if larger.
std::uint64_t node_bytes(const std::string& folder, unsigned os_index, std::uint64_t hwloc_bytes) {
  const std::string meminfo = read_text(folder + "/meminfo").value_or("");
  const auto line = line_after(meminfo, fmt::format("Node {} MemTotal:", os_index));
  return std::max(hwloc_bytes, line ? leading_number(*line).value_or(0) * 1024 : 0);
}

// hwloc gives memory without CPUs the CPUs that it is near to: those belong to the node that comes first.
void take_cpus_once(std::vector<NumaNode>& nodes) {
  std::set<unsigned> taken;
  for (NumaNode& node : nodes) {
    std::erase_if(node.cpus, [&](unsigned cpu) { return !taken.insert(cpu).second; });
  }
}

std::vector<NumaNode> numa_nodes(hwloc_topology_t topology, const std::string& root) {
  std::vector<NumaNode> nodes;
  for (hwloc_obj_t object = nullptr;
       (object = ::hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, object)) != nullptr;) {
    NumaNode node;
    node.os_index = object->os_index;
    node.cpus = indices(object->cpuset);
    const std::string folder = fmt::format("{}/sys/devices/system/node/node{}", root, node.os_index);
    node.bytes = node_bytes(folder, node.os_index, object->attr->numanode.local_memory);
    const std::string pages = folder + "/hugepages/hugepages-2048kB/";
    node.huge_pages = read_number(pages + "nr_hugepages").value_or(0);
    node.huge_pages_free = read_number(pages + "free_hugepages").value_or(0);
    nodes.push_back(std::move(node));
  }
  std::ranges::sort(nodes, {}, &NumaNode::os_index);
  take_cpus_once(nodes);
  return nodes;
}

// The one node that `object` hangs off; none if it is near several or the system does not say. On a machine of one node
// that is the one.
std::optional<unsigned> node_of(hwloc_topology_t topology, hwloc_obj_t object, const Machine& machine) {
  const hwloc_obj_t place = ::hwloc_get_non_io_ancestor_obj(topology, object);
  if (place == nullptr) return std::nullopt;
  std::vector<unsigned> nodes;
  for (const unsigned index : indices(place->nodeset)) {
    // Memory without CPUs is in its neighbour's set too; what is near it is near the neighbour.
    const NumaNode* node = machine.numa_node(index);
    if (node != nullptr && !node->cpu_less()) nodes.push_back(index);
  }
  return nodes.size() == 1 ? std::optional(nodes.front()) : std::nullopt;
}

std::string gpu_name(hwloc_obj_t device) {
  for (hwloc_obj_t child = device->io_first_child; child != nullptr; child = child->next_sibling) {
    if (const char* model = ::hwloc_obj_get_info_by_name(child, "GPUModel")) return model;
  }
  if (const char* model = ::hwloc_obj_get_info_by_name(device, "PCIDevice")) return model;
  return fmt::format("NVIDIA device {:04x}", device->attr->pcidev.device_id);
}

std::vector<Gpu> gpus(hwloc_topology_t topology, const Machine& machine) {
  std::vector<Gpu> result;
  for (hwloc_obj_t device = nullptr; (device = ::hwloc_get_next_pcidev(topology, device)) != nullptr;) {
    const auto& pci = device->attr->pcidev;
    if (pci.vendor_id != kNvidia || (pci.class_id != kVgaController && pci.class_id != k3dController)) continue;
    // PCI domains are printed with four digits or more, as the kernel does.
    std::string bus_id = fmt::format("{:04x}:{:02x}:{:02x}.{:x}", pci.domain, pci.bus, pci.dev, pci.func);
    result.push_back({std::move(bus_id), gpu_name(device), node_of(topology, device, machine)});
  }
  std::ranges::sort(result, {}, &Gpu::pci_bus_id);
  return result;
}

std::vector<BlockDevice> block_devices(hwloc_topology_t topology, const Machine& machine) {
  std::vector<BlockDevice> result;
  for (hwloc_obj_t device = nullptr; (device = ::hwloc_get_next_osdev(topology, device)) != nullptr;) {
    if (device->attr->osdev.type != HWLOC_OBJ_OSDEV_BLOCK || device->name == nullptr) continue;
    // hwloc calls CXL and DAX memory and optical drives block devices too.
    if (device->subtype != nullptr && std::string_view(device->subtype) != "Disk") continue;
    result.push_back({device->name, node_of(topology, device, machine)});
  }
  std::ranges::sort(result, {}, &BlockDevice::name);
  return result;
}

std::uint64_t sum_of(const std::vector<NumaNode>& nodes, std::uint64_t NumaNode::* field) {
  return std::accumulate(nodes.begin(), nodes.end(), std::uint64_t{0},
                         [field](std::uint64_t sum, const NumaNode& node) { return sum + node.*field; });
}

}  // namespace

bool IoUring::has(std::string_view feature) const { return std::ranges::find(features, feature) != features.end(); }

const NumaNode* Machine::numa_node(unsigned os_index) const {
  const auto found = std::ranges::find(numa_nodes, os_index, &NumaNode::os_index);
  return found == numa_nodes.end() ? nullptr : &*found;
}

std::uint64_t Machine::huge_pages() const { return sum_of(numa_nodes, &NumaNode::huge_pages); }

std::uint64_t Machine::huge_pages_free() const { return sum_of(numa_nodes, &NumaNode::huge_pages_free); }

Result<Machine> discover(const Sources& sources) {
  Result<Topology> topology = load(sources);
  if (!topology) return std::unexpected(topology.error());
  Machine machine;
  machine.numa_nodes = numa_nodes(topology->get(), sources.root);
  if (machine.numa_nodes.empty()) return fail(ErrorCode::kInternal, "hwloc finds no NUMA node; there is always one");
  machine.gpus = gpus(topology->get(), machine);
  machine.block_devices = block_devices(topology->get(), machine);
  const std::uint64_t hwloc_bytes = ::hwloc_get_root_obj(topology->get())->total_memory;
  const MemoryLimit memory = memory_limit(sources.root, hwloc_bytes);
  machine.memory_bytes = memory.bytes;
  machine.memory_total_bytes = memory.total_bytes;
  machine.memory_limit_source = memory.source;
  if (machine.numa_nodes.size() == 1) {
    machine.numa_nodes[0].bytes = std::max(machine.numa_nodes[0].bytes, memory.total_bytes);
  }
  machine.kernel_version = read_text(sources.root + "/proc/sys/kernel/osrelease").value_or("");
  machine.io_uring = sources.io_uring ? *sources.io_uring : probe_io_uring(sources.root);
  machine.open_files_max = open_files_limit(sources.root);
  machine.memlock_bytes = memlock_limit(sources.root, machine.io_uring.registers_slice);
  return machine;
}

}  // namespace terrace::topology
