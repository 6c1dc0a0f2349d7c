// SPDX-License-Identifier: Apache-2.0
// Shows what the checks of the NVIDIA driver and of its persistence say.
#include "unit/doctor/made_node.h"

namespace terrace::doctor {
namespace {

using testing::ElementsAre;

class Nvidia : public MadeNode {
 protected:
  void add_gpus() { node_.machine.gpus = {{"0000:12:00.0", "H100", 0}, {"0000:13:00.0", "H100", 0}}; }
  void load_driver() {
    write("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.1\nGCC version: 12\n");
  }
  void make_device_files() {
    for (const char* file : {"/dev/nvidia3", "/dev/nvidiactl", "/dev/nvidia-uvm"}) write(file, "");
  }
  void ask_for_gpus() {
    config::TierConfig device;
    device.kind = config::TierKind::kDevice;
    device.device = "cuda:0";
    node_.config.tiers.insert(node_.config.tiers.begin(), device);
  }
};

TEST_F(Nvidia, ANodeWithoutGpus) {
  EXPECT_THAT(check_nvidia_driver(node_), ElementsAre(is(kNotApplicable, "no NVIDIA GPU")));
  EXPECT_THAT(check_nvidia_persistence(node_), ElementsAre(is(kNotApplicable, "no NVIDIA driver")));
}

TEST_F(Nvidia, ADriverThatIsNotLoaded) {
  add_gpus();
  EXPECT_THAT(check_nvidia_driver(node_), ElementsAre(is(kWarning, "of 2 NVIDIA GPUs", "modprobe nvidia")));
  ask_for_gpus();
  EXPECT_THAT(check_nvidia_driver(node_), ElementsAre(is(kFailure, "of 2 NVIDIA GPUs", "modprobe nvidia")));
}

TEST_F(Nvidia, DeviceFiles) {
  add_gpus();
  load_driver();
  EXPECT_THAT(check_nvidia_driver(node_), ElementsAre(is(kWarning, "/dev/nvidia0 is missing", "nvidia-modprobe")));
  make_device_files();
  EXPECT_THAT(check_nvidia_driver(node_), ElementsAre(is(kOk, "/dev/nvidia3, /dev/nvidiactl, /dev/nvidia-uvm")));
  std::filesystem::remove(root_.path() + "/dev/nvidia-uvm");
  EXPECT_THAT(check_nvidia_driver(node_),
              ElementsAre(is(kWarning, "/dev/nvidia-uvm is missing", "modprobe nvidia-uvm")));
  ask_for_gpus();
  EXPECT_THAT(check_nvidia_driver(node_), ElementsAre(is(kFailure, "/dev/nvidia-uvm is missing")));
}

TEST_F(Nvidia, AGpuThatFails) {
  add_gpus();
  load_driver();
  make_device_files();
  topology::CudaDevice lost;
  lost.name = "H100";
  lost.failure = Error{ErrorCode::kDataLoss, "cuda:0 fell off the bus", 0};
  node_.machine.cuda.devices = {lost, topology::CudaDevice{}};
  EXPECT_THAT(check_nvidia_driver(node_), ElementsAre(is(kFailure, "fell off the bus", "nvidia-smi -q")));
  node_.machine.cuda = {.devices = {}, .why_not = "the driver does not answer", .broken = true};
  EXPECT_THAT(check_nvidia_driver(node_), ElementsAre(is(kFailure, "does not answer")));
}

TEST_F(Nvidia, Persistence) {
  load_driver();
  write("/proc/4711/comm", "bash\n");
  EXPECT_THAT(check_nvidia_persistence(node_), ElementsAre(is(kWarning, "does not run", "systemctl enable --now")));
  write("/proc/4712/comm", "nvidia-persiste\n");
  EXPECT_THAT(check_nvidia_persistence(node_), ElementsAre(is(kOk, "nvidia-persistenced runs")));
}

TEST_F(Nvidia, PersistenceOutsideAContainer) {
  load_driver();
  write("/run/nvidia-persistenced/socket", "");
  EXPECT_THAT(check_nvidia_persistence(node_), ElementsAre(is(kOk, "nvidia-persistenced runs")));
}

}  // namespace
}  // namespace terrace::doctor
