// SPDX-License-Identifier: Apache-2.0
// The GPUs and drives of a node as PCI devices in /sys. Internal to doctor.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "doctor/node.h"

namespace terrace::doctor {

struct PciDevice {
  std::string name;              // "GPU 0000:12:00.0", "drive nvme0n1"
  std::string address;           // "0000:12:00.0"
  std::filesystem::path folder;  // in /sys, below the root
  bool is_gpu = false;
};

// Each GPU, and each drive that is a PCI device: those of the block tier, or every one where there is none.
std::vector<PciDevice> pci_devices(const Node& node);

}  // namespace terrace::doctor
