// SPDX-License-Identifier: Apache-2.0
// [[tier]]
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/bytes.h"
#include "config/capacity.h"
#include "config/parse.h"
#include "config/section.h"
#include "config/sections.h"

namespace terrace::config {
namespace {

std::optional<double> percentage(std::string_view text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || rest + 1 != end || *rest != '%') return std::nullopt;
  return value;
}

void read_capacity(Section& section, TierKind kind, Capacity& capacity) {
  const toml::node* node = section.node("capacity");
  if (node == nullptr) {
    return section.complain("capacity", "is missing; write a size such as \"64GiB\", or a part such as \"80%\"");
  }
  if (const auto* text = node->as_string(); text != nullptr && text->get().ends_with('%')) {
    const std::optional<double> percent = percentage(text->get());
    if (!percent || !(*percent > 0 && *percent <= 100)) {
      return section.complain("capacity",
                              fmt::format("is \"{}\"; a part must be above \"0%\" and at most \"100%\"", text->get()));
    }
    capacity.percent = *percent;
    return;
  }
  const std::optional<std::uint64_t> bytes = section.bytes("capacity");
  const std::uint64_t least = kind == TierKind::kBlock ? kStripeBytes : kSegmentUnitBytes;
  if (bytes && *bytes < least) {
    section.complain("capacity",
                     fmt::format("is {} bytes; a {} tier has at least {}", *bytes, name(kind), format_bytes(least)));
  }
  capacity.bytes = bytes.value_or(0);
}

void read_numa_node(Section& section, std::optional<unsigned>& numa_node) {
  const toml::node* node = section.node("numa_node");
  if (node == nullptr) return;
  if (const auto* text = node->as_string(); text != nullptr && text->get() == "auto") return;
  const auto* number = node->as_integer();
  if (number == nullptr || number->get() < 0 || number->get() > 1023) {
    return section.complain("numa_node",
                            "must be \"auto\" or a node's number as in /sys/devices/system/node, such as 0");
  }
  numa_node = static_cast<unsigned>(number->get());
}

void read_device(Section& section, std::string& device) {
  device = section.text("device").value_or("auto");
  unsigned ordinal = 0;
  const char* end = device.data() + device.size();
  const bool cuda =
      device.starts_with("cuda:") && std::from_chars(device.data() + 5, end, ordinal).ptr == end && device.size() > 5;
  if (!cuda && device != "emulated" && device != "auto" && device != "cuda:all") {
    section.complain("device",
                     fmt::format("is \"{}\"; it must be \"auto\", \"cuda:all\", \"cuda:N\" or \"emulated\"", device));
  }
}

void read_paths(Section& section, std::vector<std::string>& paths) {
  const toml::node* node = section.node("paths");
  constexpr std::string_view kRight = "a list of files, such as [\"/scratch/terrace.block\"]; several stripe";
  if (node == nullptr) return section.complain("paths", fmt::format("is missing; a block tier needs {}", kRight));
  const auto* list = node->as_array();
  if (list == nullptr || list->empty()) return section.complain("paths", fmt::format("must be {}", kRight));
  for (const toml::node& element : *list) {
    const auto* text = element.as_string();
    if (text == nullptr || !text->get().starts_with('/') || text->get().ends_with('/')) {
      section.complain("paths",
                       "holds something other than the absolute path of a file; it must be " + std::string(kRight));
    } else if (std::ranges::find(paths, text->get()) != paths.end()) {
      section.complain("paths", fmt::format("names \"{}\" twice; each stripe needs a file of its own", text->get()));
    } else {
      paths.push_back(text->get());
    }
  }
}

void read_high_mark(Section& section, double& high_mark) {
  const std::optional<double> value = section.number("high_mark");
  if (!value) return;
  if (!(*value > 0 && *value <= 1)) {
    return section.complain("high_mark", fmt::format("is {}; it must be above 0 and at most 1, such as 0.9", *value));
  }
  high_mark = *value;
}

void read_write_budget(Section& section, std::uint64_t& bytes_per_day) {
  constexpr std::string_view kRight = "bytes a day above 0, such as \"7.68TB/day\"";
  if (const auto budget = section.bytes_per("day", "write_budget", kRight)) bytes_per_day = *budget;
}

// Keys that belong to one kind alone are refused on the others, with the kind that has them.
void refuse_elsewhere(Section& section, std::string_view key, std::string_view owners) {
  if (section.node(key) != nullptr) section.complain(key, fmt::format("is a key of {} tiers; remove it here", owners));
}

TierConfig read_tier(const toml::table& table, std::size_t index, Problems& problems) {
  Section section(table, fmt::format("tier[{}]", index), problems);
  TierConfig tier;
  tier.origin = section.origin();
  const std::optional<std::size_t> kind = section.one_of("kind", {"device", "memory", "block"});
  if (!kind && !section.has("kind")) {
    section.complain("kind", "is missing; it must be one of \"device\", \"memory\", \"block\"");
  }
  if (kind) tier.kind = static_cast<TierKind>(*kind);
  read_capacity(section, tier.kind, tier.capacity);
  read_high_mark(section, tier.high_mark);
  if (!kind) return tier;  // which other keys are right hangs on the kind
  if (tier.kind == TierKind::kBlock) {
    read_paths(section, tier.paths);
    read_write_budget(section, tier.write_budget_bytes_per_day);
    for (const std::string_view key : {"numa_node", "huge_pages"}) refuse_elsewhere(section, key, "device and memory");
  } else {
    read_numa_node(section, tier.numa_node);
    if (const auto pages = section.one_of("huge_pages", {"auto", "never", "2MiB"})) {
      tier.huge_pages = static_cast<HugePages>(*pages);
    }
    for (const std::string_view key : {"paths", "write_budget"}) refuse_elsewhere(section, key, "block");
  }
  if (tier.kind == TierKind::kDevice) {
    read_device(section, tier.device);
    if (const auto when = section.one_of("write_back", {"auto", "early", "late"})) {
      tier.write_back = static_cast<WriteBack>(*when);
    }
    if (const auto how = section.one_of("take_back", {"wait", "give_up"})) tier.take_back = static_cast<TakeBack>(*how);
  } else {
    for (const std::string_view key : {"device", "write_back", "take_back"}) refuse_elsewhere(section, key, "device");
  }
  section.finish();
  return tier;
}

// What is wrong with `tier` below `above`: the order, and how many of a kind there may be.
void check_order(const TierConfig& above, const TierConfig& tier, Problems& problems) {
  const auto complain = [&](const std::string& what) { problems.add(tier.origin.line, tier.origin.section, what); };
  if (problems.names(above.origin.name_of("kind")) || problems.names(tier.origin.name_of("kind"))) return;
  if (tier.kind < above.kind) {
    complain(fmt::format("a {} tier stands below a {} tier; the order is device, memory, block, fastest first",
                         name(tier.kind), name(above.kind)));
  } else if (tier.kind == TierKind::kBlock && above.kind == TierKind::kBlock) {
    complain("is a second block tier; give one block tier several paths, and they stripe");
  } else if (tier.kind == TierKind::kMemory && above.kind == TierKind::kMemory) {
    complain("is a second memory tier; make one of both, with numa_node = \"auto\" to take memory of every node");
  }
}

// What is asked for, and has nowhere to go.
void check_write_back(const std::vector<TierConfig>& tiers, Problems& problems) {
  const TierConfig& home = tiers.back();
  if (std::ranges::find(tiers, TierKind::kMemory, &TierConfig::kind) != tiers.end()) return;
  if (home.kind == TierKind::kBlock && home.write_budget_bytes_per_day != 0) return;
  for (const TierConfig& tier : tiers) {
    if (tier.write_back != WriteBack::kEarly) continue;
    problems.add(
        tier.origin.line_of("write_back"), tier.origin.name_of("write_back"),
        home.kind == TierKind::kBlock
            ? "is \"early\", and drives are written early within a budget alone; add a memory tier, or a "
              "write_budget to the block tier, or remove it"
            : "is \"early\", and there is no tier beneath to write to; add a memory or a block tier, or remove "
              "it");
  }
}

}  // namespace

void read_tiers(Section& root, Problems& problems, Config& config) {
  const std::vector<const toml::table*> tables = root.tables("tier");
  for (const toml::table* table : tables) config.tiers.push_back(read_tier(*table, config.tiers.size(), problems));
  if (config.tiers.size() > kTiersMax) {
    root.complain("tier", fmt::format("there are {} tiers; at most {} are possible", tables.size(), kTiersMax));
  }
  for (std::size_t i = 1; i < config.tiers.size(); ++i) {
    const TierConfig& tier = config.tiers[i];
    check_order(config.tiers[i - 1], tier, problems);
    for (std::size_t j = 0; j < i; ++j) {
      if (tier.device.starts_with("cuda:") && tier.device == config.tiers[j].device) {
        problems.add(tier.origin.line_of("device"), tier.origin.name_of("device"),
                     fmt::format("is {} again; each GPU is one tier", tier.device));
      }
    }
  }
  if (!config.tiers.empty()) check_write_back(config.tiers, problems);
}

}  // namespace terrace::config
