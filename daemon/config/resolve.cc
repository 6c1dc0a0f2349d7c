// SPDX-License-Identifier: Apache-2.0
#include "config/resolve.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <system_error>

#include "base/bytes.h"
#include "base/check.h"
#include "config/problems.h"

namespace terrace::config {
namespace {

constexpr std::uint64_t kHugePageBytes = 2 * kMiB;
// Without a configuration, the daemon takes this part of the memory at most.
constexpr std::uint64_t kDefaultMemoryPart = 4;
// As many as there are places for.
constexpr std::size_t kDevicesMax = 8;

// Both figures, so that two that round alike can be told apart.
std::string exact(std::uint64_t bytes) { return fmt::format("{} ({} bytes)", format_bytes(bytes), bytes); }

std::uint64_t part_of(std::uint64_t whole, double percent) {
  return static_cast<std::uint64_t>(static_cast<double>(whole) * (percent / 100));
}

// Works on one configuration; run() once.
class Resolver {
 public:
  Resolver(const Config& config, const topology::Machine& machine)
      : config_(config), machine_(machine), problems_(config.source.empty() ? "defaults" : config.source) {}

  Result<Config> run() {
    if (config_.tiers.empty()) add_default_tier();
    name_devices();
    for (std::size_t i = 0; i < config_.tiers.size(); ++i) resolve_tier(i);
    check_memory();
    check_sockets();
    if (!problems_.none()) return std::unexpected(problems_.error());
    warn_of_small_home();
    return config_;
  }

 private:
  void add_default_tier() {
    TierConfig tier;
    tier.kind = TierKind::kMemory;
    tier.capacity.bytes = align_down(machine_.memory_bytes / kDefaultMemoryPart, kHugePageBytes);
    if (tier.capacity.bytes == 0)
      complain(tier, "tier", "no tier is configured, and the machine has no memory to spare");
    config_.tiers.push_back(tier);
  }

  void complain(const TierConfig& tier, const std::string& key, const std::string& what) {
    problems_.add(tier.line, key, what);
  }

  void resolve_tier(std::size_t index) {
    TierConfig& tier = config_.tiers[index];
    const std::string prefix = fmt::format("tier[{}].", index);
    if (tier.kind == TierKind::kBlock) return resolve_block(tier, prefix);
    if (tier.device.starts_with("cuda:")) return resolve_gpu(tier, prefix);
    if (tier.capacity.percent) {
      tier.capacity.bytes = align_down(part_of(node_or_machine_bytes(tier), *tier.capacity.percent), kHugePageBytes);
    }
    tier.capacity.bytes = align_down(tier.capacity.bytes, kPageBytes);
    if (tier.capacity.bytes == 0)
      complain(tier, prefix + "capacity", "comes to less than 2 MiB here; write a larger part");
    check_node(tier, prefix);
    check_huge_pages(tier, prefix);
  }

  std::uint64_t node_or_machine_bytes(const TierConfig& tier) const {
    const topology::NumaNode* node = tier.numa_node ? machine_.numa_node(*tier.numa_node) : nullptr;
    return node != nullptr ? std::min(node->bytes, machine_.memory_bytes) : machine_.memory_bytes;
  }

  void check_node(const TierConfig& tier, const std::string& prefix) {
    if (!tier.numa_node) return;
    const topology::NumaNode* node = machine_.numa_node(*tier.numa_node);
    if (node == nullptr) {
      std::vector<unsigned> known;
      for (const topology::NumaNode& each : machine_.numa_nodes) known.push_back(each.os_index);
      return complain(tier, prefix + "numa_node",
                      fmt::format("is {}, and this machine has {}; write one of them, or "
                                  "\"auto\"",
                                  *tier.numa_node, fmt::join(known, ", ")));
    }
    node_bytes_[*tier.numa_node] += tier.capacity.bytes;
    if (node_bytes_[*tier.numa_node] > node->bytes) {
      complain(tier, prefix + "capacity",
               fmt::format("the tiers on node {} come to {} with this one, and the node has "
                           "{}; make them smaller, or numa_node = \"auto\"",
                           *tier.numa_node, exact(node_bytes_[*tier.numa_node]), exact(node->bytes)));
    }
  }

  void check_huge_pages(const TierConfig& tier, const std::string& prefix) {
    if (tier.huge_pages != HugePages::k2MiB) return;
    const topology::NumaNode* node = tier.numa_node ? machine_.numa_node(*tier.numa_node) : nullptr;
    const std::uint64_t pages = (tier.capacity.bytes + kHugePageBytes - 1) / kHugePageBytes;
    std::uint64_t wanted = huge_pages_ += pages;
    std::uint64_t free = machine_.huge_pages_free();
    if (wanted <= free && node != nullptr) {
      wanted = node_huge_pages_[node->os_index] += pages;
      free = node->huge_pages_free;
    }
    if (wanted <= free) return;
    complain(
        tier, prefix + "huge_pages",
        fmt::format("is \"2MiB\", which takes {} huge pages, and {} are free{}; reserve more (vm.nr_hugepages), or "
                    "write \"auto\"",
                    wanted, free,
                    node != nullptr ? fmt::format(" (on node {}: {})", node->os_index, node->huge_pages_free) : ""));
  }

  // What "auto" and "cuda:all" stand for: as many tiers as there are GPUs, all alike.
  void name_devices() {
    const auto gpus = machine_.cuda.devices.size();
    std::vector<TierConfig> tiers;
    for (TierConfig& tier : config_.tiers) {
      const bool every = tier.device == "cuda:all" || (tier.device == "auto" && gpus > 0);
      if (tier.device == "auto" && gpus == 0) {
        tier.device = "emulated";
        warn_of_unused_gpus();
      }
      if (!every) {
        tiers.push_back(tier);
        continue;
      }
      if (gpus == 0) complain(tier, "tier.device", fmt::format("is \"cuda:all\": {}", machine_.cuda.why_not));
      for (std::size_t ordinal = 0; ordinal < gpus; ++ordinal) {
        tiers.push_back(tier);
        tiers.back().device = fmt::format("cuda:{}", ordinal);
      }
    }
    config_.tiers = std::move(tiers);
    check_devices();
  }

  void warn_of_unused_gpus() {
    if (machine_.gpus.empty()) return;
    config_.warnings.push_back(
        fmt::format("the device tier is emulated in host memory, though there is {}: {}", machine_.gpus.front().name,
                    machine_.cuda.why_not.empty() ? "the CUDA driver was not asked" : machine_.cuda.why_not));
  }

  void check_devices() {
    std::size_t devices = 0;
    for (std::size_t i = 0; i < config_.tiers.size(); ++i) {
      const TierConfig& tier = config_.tiers[i];
      if (tier.kind != TierKind::kDevice) continue;
      if (++devices == kDevicesMax + 1)
        complain(tier, "tier", fmt::format("there are more than {} device tiers", kDevicesMax));
      for (std::size_t j = 0; j < i; ++j) {
        if (tier.device.starts_with("cuda:") && tier.device == config_.tiers[j].device)
          complain(tier, fmt::format("tier[{}].device", i),
                   fmt::format("is {} again; each GPU is one tier", tier.device));
      }
    }
  }

  void resolve_gpu(TierConfig& tier, const std::string& prefix) {
    if (tier.device == "cuda:all") return;  // complained of
    std::size_t ordinal = 0;
    const std::string_view number = std::string_view(tier.device).substr(5);
    std::from_chars(number.data(), number.data() + number.size(), ordinal);
    const auto& gpus = machine_.cuda.devices;
    if (ordinal >= gpus.size()) {
      const std::string there = gpus.empty()
                                    ? machine_.cuda.why_not.empty() ? "no CUDA device was found" : machine_.cuda.why_not
                                    : fmt::format("the CUDA driver gives this process {}", gpus.size());
      return complain(tier, prefix + "device",
                      fmt::format("is \"{}\": {}; write \"auto\" for what is there", tier.device, there));
    }
    for (const auto& [set, key] : {std::pair(tier.numa_node.has_value(), "numa_node"),
                                   std::pair(tier.huge_pages != HugePages::kAuto, "huge_pages")})
      if (set) complain(tier, prefix + key, "is a key of emulated devices and of memory; remove it here");
    const topology::CudaDevice& gpu = gpus[ordinal];
    tier.device_name = fmt::format("{} at {}", gpu.name, gpu.pci_bus_id);
    if (tier.capacity.percent) tier.capacity.bytes = part_of(gpu.free_bytes, *tier.capacity.percent);
    tier.capacity.bytes = align_down(tier.capacity.bytes, kHugePageBytes);
    if (tier.capacity.bytes == 0)
      return complain(tier, prefix + "capacity", "comes to less than 2 MiB here; write a larger part");
    if (tier.capacity.bytes > gpu.free_bytes) {
      return complain(tier, prefix + "capacity",
                      fmt::format("is {}, and {} has {} free of {}; write less, or a part such as \"50%\"",
                                  exact(tier.capacity.bytes), tier.device_name, exact(gpu.free_bytes),
                                  format_bytes(gpu.total_bytes)));
    }
    if (gpu.free_bytes - tier.capacity.bytes < gpu.total_bytes / 10) {
      config_.warnings.push_back(fmt::format(
          "{} takes {} of {} that are free of {} on {}: what is left, {}, is all that trainers have there for "
          "contexts, "
          "libraries and PyTorch's own allocator",
          tier.device, format_bytes(tier.capacity.bytes), format_bytes(gpu.free_bytes), format_bytes(gpu.total_bytes),
          tier.device_name, format_bytes(gpu.free_bytes - tier.capacity.bytes)));
    }
  }

  // Stripes are equal parts, so every file must find its part; files on one file system share its room.
  void resolve_block(TierConfig& tier, const std::string& prefix) {
    struct Room {
      std::uint64_t bytes = 0;
      std::uint64_t files = 0;
    };
    std::map<std::uint64_t, Room> rooms;
    for (const std::string& path : tier.paths) {
      const Result<topology::BlockRoom> room = topology::block_room(path);
      if (!room) return complain(tier, prefix + "paths", room.error().message);
      Room& shared = rooms[room->file_system_id];
      shared.bytes = std::max(shared.bytes, room->free_bytes) + room->held_bytes;
      shared.files += 1;
    }
    std::uint64_t part_bytes_max = UINT64_MAX;
    for (const auto& [id, room] : rooms) part_bytes_max = std::min(part_bytes_max, room.bytes / room.files);
    const std::uint64_t room_bytes = part_bytes_max * tier.paths.size();
    if (tier.capacity.percent) {
      tier.capacity.bytes = align_down(part_of(room_bytes, *tier.capacity.percent), kHugePageBytes);
    }
    const std::uint64_t unit = kPageBytes * tier.paths.size();
    tier.capacity.bytes -= tier.capacity.bytes % unit;
    if (tier.capacity.bytes == 0) {
      return complain(tier, prefix + "capacity",
                      fmt::format("comes to less than a page a file; there is room for {}", exact(room_bytes)));
    }
    if (tier.capacity.bytes > room_bytes) {
      complain(tier, prefix + "capacity",
               fmt::format("is {}, and its file systems have room for {}; write that or "
                           "less, or a part such as \"80%\"",
                           exact(tier.capacity.bytes), exact(room_bytes)));
    }
  }

  void check_memory() {
    std::uint64_t sum = 0;
    const TierConfig* last = nullptr;
    for (const TierConfig& tier : config_.tiers) {
      if (tier.kind == TierKind::kBlock || tier.device.starts_with("cuda:")) continue;
      // Each is below 2^63 bytes, so that one that wraps the sum is caught when it is added.
      if (sum + tier.capacity.bytes < sum) sum = UINT64_MAX - tier.capacity.bytes;
      sum += tier.capacity.bytes;
      last = &tier;
    }
    if (sum <= machine_.memory_bytes) return;
    complain(*last, "tier.capacity",
             fmt::format("the tiers in memory (memory, and emulated devices) come to {}, and "
                         "what may be used is {}, by {}; make them smaller, or raise that limit",
                         exact(sum), exact(machine_.memory_bytes), machine_.memory_limit_source));
  }

  // What lies at a socket's path is replaced if it is a socket, and is somebody's file otherwise.
  void check_sockets() {
    for (std::size_t i = 0; i < config_.tenants.size(); ++i) {
      const TenantConfig& tenant = config_.tenants[i];
      check_socket(tenant.data_socket, tenant.line, fmt::format("tenant[{}].data_socket", i));
      check_socket(tenant.grpc_socket, tenant.line, fmt::format("tenant[{}].grpc_socket", i));
    }
    check_socket(config_.sockets.admin, 0, "sockets.admin");
  }

  void check_socket(const std::string& path, std::uint32_t line, const std::string& key) {
    std::error_code unreadable;
    const auto there = std::filesystem::symlink_status(path, unreadable);
    if (!std::filesystem::exists(there) || std::filesystem::is_socket(there)) return;
    problems_.add(
        line, key,
        fmt::format("\"{}\" is there and is no socket; choose another path, or remove it if it may go", path));
  }

  // The last tier holds every tensor's home; what stands above it caches and adds no capacity.
  void warn_of_small_home() {
    const TierConfig& home = config_.tiers.back();
    std::uint64_t above = 0;
    for (const TierConfig& tier : config_.tiers) above += &tier == &home ? 0 : tier.capacity.bytes;
    if (above <= home.capacity.bytes) return;
    config_.warnings.push_back(fmt::format(
        "the tiers above the {} tier have {}, and the {} tier, which holds every tensor's home, has {}: they cache and "
        "add no capacity, so no more than {} of tensors fit; set the {} tier's capacity to {} or more",
        name(home.kind), exact(above), name(home.kind), exact(home.capacity.bytes), format_bytes(home.capacity.bytes),
        name(home.kind), exact(above)));
  }

  Config config_;
  const topology::Machine& machine_;
  Problems problems_;
  std::map<unsigned, std::uint64_t> node_bytes_;
  std::uint64_t huge_pages_ = 0;  // that tiers so far must have, on any node
  std::map<unsigned, std::uint64_t> node_huge_pages_;
};

std::string tier_text(const TierConfig& tier) {
  const std::string size = format_bytes(tier.capacity.bytes);
  switch (tier.kind) {
    case TierKind::kBlock:
      return fmt::format("block, {}, {}", size, fmt::join(tier.paths, ", "));
    case TierKind::kDevice:
    case TierKind::kMemory:
      if (!tier.device_name.empty()) return fmt::format("device ({}, {}), {}", tier.device, tier.device_name, size);
      return fmt::format("{}{}, {}, {}, huge pages {}", name(tier.kind),
                         tier.device.empty() ? "" : fmt::format(" ({})", tier.device), size,
                         tier.numa_node ? fmt::format("node {}", *tier.numa_node) : "any node", name(tier.huge_pages));
  }
  check_failed("a TierKind", __FILE__, __LINE__);
}

}  // namespace

bool asks_for_gpus(const Config& config) {
  return std::ranges::any_of(
      config.tiers, [](const TierConfig& tier) { return tier.kind == TierKind::kDevice && tier.device != "emulated"; });
}

Result<Config> resolve(const Config& config, const topology::Machine& machine) {
  return Resolver(config, machine).run();
}

Result<Config> defaults(const topology::Machine& machine, const std::string& runtime_dir) {
  Result<Config> config = parse("", "defaults", runtime_dir);
  if (!config) return config;
  config->source.clear();
  return resolve(*config, machine);
}

Result<topology::Taken> taken(const Config& config, const topology::Sources& sources) {
  topology::Taken result;
  std::uint64_t memory_bytes = 0;
  for (const TierConfig& tier : config.tiers) {
    result.tiers.push_back(tier_text(tier));
    for (const std::string& path : tier.paths) {
      Result<topology::BlockPath> block = topology::inspect_block_path(path, sources);
      if (!block) return std::unexpected(block.error());
      result.block_paths.push_back(std::move(*block));
    }
    if (tier.kind == TierKind::kBlock || tier.device.starts_with("cuda:")) continue;
    memory_bytes += tier.capacity.bytes;
    if (tier.huge_pages != HugePages::kNever) result.huge_page_bytes += tier.capacity.bytes;
  }
  if (!result.block_paths.empty()) result.pinned_bytes = memory_bytes;
  return result;
}

}  // namespace terrace::config
