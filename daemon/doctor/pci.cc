// SPDX-License-Identifier: Apache-2.0
// How GPUs and drives are attached, and whether they are awake.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "doctor/checks.h"
#include "doctor/pci_devices.h"
#include "topology/text_file.h"

namespace terrace::doctor {
namespace {

constexpr std::uint64_t kLanesMax = 32;  // more are what the kernel writes where it does not know

std::string attribute(const PciDevice& device, const char* name) {
  return topology::read_text((device.folder / name).string()).value_or("");
}

std::optional<std::uint64_t> lanes(const PciDevice& device, const char* name) {
  const auto number = topology::leading_number(attribute(device, name));
  return number && *number > 0 && *number <= kLanesMax ? number : std::nullopt;
}

// Of "16.0 GT/s PCIe" the number; none of "Unknown".
std::optional<double> gigatransfers(const PciDevice& device, const char* name) {
  const std::string text = attribute(device, name);
  double speed = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), speed);
  return error == std::errc() && speed > 0 ? std::optional(speed) : std::nullopt;
}

std::optional<Finding> look_at_link(const PciDevice& device) {
  const auto width = lanes(device, "current_link_width");
  const auto width_max = lanes(device, "max_link_width");
  if (!width || !width_max) return std::nullopt;
  const auto speed = gigatransfers(device, "current_link_speed");
  const auto speed_max = gigatransfers(device, "max_link_speed");
  const bool is_slow = speed && speed_max && *speed < *speed_max;
  const std::string figures = speed && speed_max
                                  ? fmt::format("x{} of x{}, {} of {} GT/s", *width, *width_max, *speed, *speed_max)
                                  : fmt::format("x{} of x{}", *width, *width_max);
  const std::string mend = fmt::format(
      "lspci -vvs {} | grep Lnk; then seat the card anew, or move it to a slot that has its lanes and speed",
      device.address);
  if (*width < *width_max)
    return warning(fmt::format("{}: transfers to and from it have that part of their speed", figures), mend,
                   device.name);
  // A GPU's link slows down while it idles.
  if (is_slow && !device.is_gpu)
    return warning(fmt::format("{}: its link runs below its speed", figures), mend, device.name);
  if (is_slow) return ok(fmt::format("{}; a GPU that idles lowers it", figures), device.name);
  return ok(figures, device.name);
}

std::optional<Finding> look_at_power(const PciDevice& device) {
  const std::string state = attribute(device, "power_state");
  const std::string control = attribute(device, "power/control");
  const std::string status = attribute(device, "power/runtime_status");
  if (control.empty() && status.empty() && (state.empty() || state == "unknown")) return std::nullopt;
  const std::string mend = fmt::format("echo on > /sys/bus/pci/devices/{}/power/control", device.address);
  if (status == "suspended" || state.starts_with("D3"))
    return warning(
        fmt::format("it sleeps ({}): the first transfer waits until it is awake", state.empty() ? status : state), mend,
        device.name);
  if (control == "auto" && attribute(device, "d3cold_allowed") != "0")
    return warning("it is awake, and the kernel may put it to sleep when it idles (power/control is auto)", mend,
                   device.name);
  return ok(fmt::format("it is awake ({}), and {}", state.empty() ? status : state,
                        control == "on" ? "stays so" : "loses no power"),
            device.name);
}

Findings look_at_all(const Node& node, std::optional<Finding> (*look)(const PciDevice&), const char* what) {
  Findings found;
  const std::vector<PciDevice> devices = pci_devices(node);
  for (const PciDevice& device : devices)
    if (auto finding = look(device)) found.push_back(std::move(*finding));
  if (!found.empty()) return found;
  if (devices.empty()) return {not_applicable("there is no GPU, and no drive that is a PCI device")};
  return {not_applicable(fmt::format("the system does not tell the {}, as in most virtual machines", what))};
}

}  // namespace

Findings check_pcie_link(const Node& node) { return look_at_all(node, look_at_link, "links of its GPUs and drives"); }

Findings check_power_state(const Node& node) {
  return look_at_all(node, look_at_power, "power states of its GPUs and drives");
}

}  // namespace terrace::doctor
