// SPDX-License-Identifier: Apache-2.0
// The NVIDIA driver: that it is loaded, gives its device files, and stays awake.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "config/resolve.h"
#include "doctor/checks.h"
#include "topology/cuda_probe.h"
#include "topology/text_file.h"

namespace terrace::doctor {
namespace {

namespace fs = std::filesystem;

// The kernel keeps fifteen letters of a program's name.
constexpr const char* kPersistenceName = "nvidia-persiste";

bool is_there(const Node& node, const std::string& path) {
  std::error_code error;
  return fs::exists(node.root + path, error);
}

// The first of the GPUs' own files: their numbers have holes in a container that was given some.
std::string gpu_file(const Node& node) {
  std::error_code error;
  std::string first;
  for (const fs::directory_entry& entry : fs::directory_iterator(node.root + "/dev", error)) {
    const std::string name = entry.path().filename().string();
    const std::string_view number = std::string_view(name).substr(std::min<std::size_t>(name.size(), 6));
    const bool is_number = !number.empty() && number.find_first_not_of("0123456789") == std::string_view::npos;
    if (name.starts_with("nvidia") && is_number && (first.empty() || name < first)) first = name;
  }
  return first.empty() ? "/dev/nvidia0" : "/dev/" + first;
}

// A configuration that names GPUs does not start without them; one that says "auto" emulates them.
bool must_have_gpus(const Node& node) {
  return std::ranges::any_of(node.config.tiers, [](const config::TierConfig& tier) {
    return tier.kind == config::TierKind::kDevice && tier.device.starts_with("cuda");
  });
}

Finding lacks(const Node& node, std::string reason, std::string mend) {
  return must_have_gpus(node) ? failure(std::move(reason), std::move(mend))
                              : warning(std::move(reason), std::move(mend));
}

bool persistence_runs(const Node& node) {
  for (const char* path : {"/run/nvidia-persistenced/socket", "/var/run/nvidia-persistenced/socket"})
    if (is_there(node, path)) return true;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(node.root + "/proc", error))
    if (topology::read_text(entry.path().string() + "/comm").value_or("") == kPersistenceName) return true;
  return false;
}

// Those that the driver was asked for, as the configuration wants them, and that do not work.
Findings failing_gpus(const Node& node) {
  Findings found;
  for (const topology::CudaDevice& device : node.machine.cuda.devices)
    if (device.failure)
      found.push_back(failure(device.failure->message, "nvidia-smi -q; journalctl -k --grep NVRM", device.name));
  if (node.machine.cuda.broken)
    found.push_back(failure(node.machine.cuda.why_not, "nvidia-smi -q; journalctl -k --grep NVRM"));
  return found;
}

}  // namespace

Findings check_nvidia_driver(const Node& node) {
  const bool is_loaded = is_there(node, topology::kNvidiaDriver);
  const std::size_t gpus = node.machine.gpus.size();
  if (gpus == 0 && !is_loaded && !must_have_gpus(node)) return {not_applicable("there is no NVIDIA GPU")};
  if (gpus == 0 && !is_loaded)
    return {failure("the configuration names GPUs, and this machine shows none of NVIDIA's",
                    "lspci -d 10de: shows what is there; device = \"auto\" in the tier does without")};
  if (!is_loaded)
    return {lacks(node, fmt::format("of {} NVIDIA GPUs none can be used: the driver is not loaded", gpus),
                  "modprobe nvidia (installed with your distribution's NVIDIA driver)")};
  const std::vector<std::string> files = {gpu_file(node), "/dev/nvidiactl", "/dev/nvidia-uvm"};
  for (const std::string& file : files) {
    if (!is_there(node, file))
      return {lacks(node, fmt::format("the driver is loaded, and {} is missing", file),
                    "modprobe nvidia-uvm && nvidia-modprobe -c 0 -u")};
    if (::access((node.root + file).c_str(), R_OK | W_OK) != 0)
      return {lacks(node, fmt::format("this user may not open {}", file),
                    fmt::format("ls -l {} names its group; usermod -a -G GROUP terrace, unless that is root", file))};
  }
  if (Findings failing = failing_gpus(node); !failing.empty()) return failing;
  const std::string version = topology::read_text(node.root + topology::kNvidiaDriver).value_or("");
  return {ok(fmt::format("it is loaded, with {}: {}", fmt::join(files, ", "), version.substr(0, version.find('\n'))))};
}

Findings check_nvidia_persistence(const Node& node) {
  if (!is_there(node, topology::kNvidiaDriver)) return {not_applicable("there is no NVIDIA driver")};
  if (persistence_runs(node)) return {ok("nvidia-persistenced runs")};
  return {
      warning("nvidia-persistenced does not run: while nobody uses a GPU the driver lets it go, and the next start "
              "waits for it for seconds; a mode set by `nvidia-smi -pm 1` is not seen here",
              "systemctl enable --now nvidia-persistenced")};
}

}  // namespace terrace::doctor
