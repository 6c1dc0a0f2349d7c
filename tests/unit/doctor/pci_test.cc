// SPDX-License-Identifier: Apache-2.0
// Shows what the checks of PCIe links and power states say of GPUs, and of drives with and without multipath.
#include "unit/doctor/made_node.h"

namespace terrace::doctor {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::Field;

constexpr const char* kGpu = "/sys/bus/pci/devices/0000:12:00.0/";
constexpr const char* kDrive = "/sys/devices/pci0000:00/0000:04:00.0/";

class Pci : public MadeNode {
 protected:
  void set_link(const std::string& folder, const std::string& width, const std::string& width_max,
                const std::string& speed, const std::string& speed_max) {
    write(folder + "current_link_width", width);
    write(folder + "max_link_width", width_max);
    write(folder + "current_link_speed", speed);
    write(folder + "max_link_speed", speed_max);
  }
  void add_gpu() { node_.machine.gpus = {{"0000:12:00.0", "H100", 0}}; }
  // As /sys shows an NVMe drive: links that lead to a folder below its PCI device's.
  void add_drive() {
    node_.machine.block_devices = {{"nvme0n1", 0}};
    write(std::string(kDrive) + "class", "0x010802\n");
    write(std::string(kDrive) + "vendor", "0x144d\n");
    write(std::string(kDrive) + "nvme/nvme0/nvme0n1/size", "0\n");
    link("/sys/class/block/nvme0n1", std::string(kDrive) + "nvme/nvme0/nvme0n1");
  }
};

TEST_F(Pci, NothingToLookAt) {
  EXPECT_THAT(check_pcie_link(node_), ElementsAre(is(kNotApplicable, "no GPU")));
  EXPECT_THAT(check_power_state(node_), ElementsAre(is(kNotApplicable, "no GPU")));
  add_gpu();
  EXPECT_THAT(check_pcie_link(node_), ElementsAre(is(kNotApplicable, "virtual machines")));
  EXPECT_THAT(check_power_state(node_), ElementsAre(is(kNotApplicable, "virtual machines")));
}

TEST_F(Pci, AWidthThatTheKernelDoesNotKnow) {
  add_gpu();
  set_link(kGpu, "63\n", "255\n", "Unknown\n", "Unknown\n");
  EXPECT_THAT(check_pcie_link(node_), ElementsAre(is(kNotApplicable, "does not tell")));
}

TEST_F(Pci, ALinkOfAGpu) {
  add_gpu();
  set_link(kGpu, "16\n", "16\n", "32.0 GT/s PCIe\n", "32.0 GT/s PCIe\n");
  EXPECT_THAT(check_pcie_link(node_), ElementsAre(is(kOk, "x16 of x16, 32 of 32 GT/s")));
  set_link(kGpu, "16\n", "16\n", "2.5 GT/s PCIe\n", "32.0 GT/s PCIe\n");
  EXPECT_THAT(check_pcie_link(node_), ElementsAre(is(kOk, "idles")));
  set_link(kGpu, "8\n", "16\n", "32.0 GT/s PCIe\n", "32.0 GT/s PCIe\n");
  EXPECT_THAT(check_pcie_link(node_), ElementsAre(AllOf(is(kWarning, "x8 of x16", "lspci -vvs 0000:12:00.0"),
                                                        Field(&Finding::subject, "GPU 0000:12:00.0"))));
}

TEST_F(Pci, ALinkOfADrive) {
  add_drive();
  set_link(kDrive, "4\n", "4\n", "16.0 GT/s PCIe\n", "16.0 GT/s PCIe\n");
  EXPECT_THAT(check_pcie_link(node_), ElementsAre(is(kOk, "x4 of x4")));
  set_link(kDrive, "4\n", "4\n", "8.0 GT/s PCIe\n", "16.0 GT/s PCIe\n");
  EXPECT_THAT(check_pcie_link(node_), ElementsAre(AllOf(is(kWarning, "8 of 16 GT/s", "lspci -vvs 0000:04:00.0"),
                                                        Field(&Finding::subject, "drive nvme0n1"))));
}

TEST_F(Pci, ADriveUnderMultipathIsFoundByItsController) {
  node_.machine.block_devices = {{"nvme0n1", 0}};
  write(std::string(kDrive) + "class", "0x010802\n");
  write(std::string(kDrive) + "vendor", "0x144d\n");
  write(std::string(kDrive) + "nvme/nvme0/model", "a drive\n");
  write("/sys/devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1/size", "0\n");
  link("/sys/class/block/nvme0n1", "/sys/devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1");
  link("/sys/class/nvme/nvme0", std::string(kDrive) + "nvme/nvme0");
  set_link(kDrive, "2\n", "4\n", "16.0 GT/s PCIe\n", "16.0 GT/s PCIe\n");
  EXPECT_THAT(check_pcie_link(node_), ElementsAre(is(kWarning, "x2 of x4")));
}

TEST_F(Pci, PowerStates) {
  add_gpu();
  const std::string gpu = kGpu;
  write(gpu + "power_state", "D0\n");
  write(gpu + "power/control", "on\n");
  write(gpu + "power/runtime_status", "active\n");
  EXPECT_THAT(check_power_state(node_), ElementsAre(is(kOk, "awake (D0)")));
  write(gpu + "power/control", "auto\n");
  write(gpu + "d3cold_allowed", "1\n");
  const std::string mend = "echo on > /sys/bus/pci/devices/0000:12:00.0/power/control";
  EXPECT_THAT(check_power_state(node_), ElementsAre(is(kWarning, "may put it to sleep", mend)));
  write(gpu + "d3cold_allowed", "0\n");
  EXPECT_THAT(check_power_state(node_), ElementsAre(is(kOk, "loses no power")));
  write(gpu + "power_state", "D3cold\n");
  EXPECT_THAT(check_power_state(node_), ElementsAre(is(kWarning, "it sleeps (D3cold)", mend)));
}

}  // namespace
}  // namespace terrace::doctor
