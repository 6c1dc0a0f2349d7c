// SPDX-License-Identifier: Apache-2.0
#include "doctor/pci_devices.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "topology/block_path.h"

namespace terrace::doctor {
namespace {

namespace fs = std::filesystem;

// The nearest PCI device at or above a link's end: of all folders in /sys, only theirs have both files.
std::optional<fs::path> pci_above(const fs::path& link) {
  std::error_code error;
  fs::path folder = fs::canonical(link, error);
  if (error) return std::nullopt;
  for (; folder.has_relative_path(); folder = folder.parent_path())
    if (fs::exists(folder / "class", error) && fs::exists(folder / "vendor", error)) return folder;
  return std::nullopt;
}

// With multipath, an NVMe drive hangs off its subsystem, and its controller off PCI: "nvme0n1", "nvme0".
std::optional<fs::path> drive_folder(const std::string& root, const std::string& drive) {
  if (auto found = pci_above(fmt::format("{}/sys/class/block/{}", root, drive))) return found;
  const std::size_t space = drive.find('n', std::string_view("nvme").size());
  if (!drive.starts_with("nvme") || space == std::string::npos) return std::nullopt;
  return pci_above(fmt::format("{}/sys/class/nvme/{}", root, drive.substr(0, space)));
}

std::vector<std::string> drives_of(const Node& node) {
  std::vector<std::string> drives;
  const config::TierConfig* block = block_tier(node.config);
  if (block == nullptr) {
    for (const topology::BlockDevice& device : node.machine.block_devices) drives.push_back(device.name);
    return drives;
  }
  for (const std::string& path : block->paths) {
    if (is_silent(node, path)) continue;
    const auto found = topology::inspect_block_path(path, {.root = node.root, .hwloc_xml = {}, .io_uring = {}});
    if (!found) continue;  // block_path says so
    for (const std::string& drive : found->devices)
      if (std::ranges::find(drives, drive) == drives.end()) drives.push_back(drive);
  }
  return drives;
}

}  // namespace

std::vector<PciDevice> pci_devices(const Node& node) {
  std::vector<PciDevice> devices;
  for (const topology::Gpu& gpu : node.machine.gpus)
    devices.push_back({"GPU " + gpu.pci_bus_id, gpu.pci_bus_id,
                       fmt::format("{}/sys/bus/pci/devices/{}", node.root, gpu.pci_bus_id), true});
  for (const std::string& drive : drives_of(node))
    if (const auto folder = drive_folder(node.root, drive))
      devices.push_back({"drive " + drive, folder->filename().string(), *folder, false});
  return devices;
}

}  // namespace terrace::doctor
