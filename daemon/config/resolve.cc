// SPDX-License-Identifier: Apache-2.0
#include "config/resolve.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "base/bytes.h"
#include "base/check.h"
#include "config/capacity.h"
#include "config/findings.h"
#include "config/resolve_parts.h"

namespace terrace::config {
namespace {

// Without a configuration, the daemon takes this part of the memory at most.
constexpr std::uint64_t kDefaultMemoryPart = 4;
// As many as there are places for.
constexpr std::size_t kDevicesMax = 8;

// Works on one configuration; run() once.
class Resolver {
 public:
  Resolver(Draft draft, const topology::Machine& machine)
      : config_(std::move(draft.config)), machine_(machine), findings_(std::move(draft.problems)) {}

  Result<Config> run() {
    if (config_.tiers.empty()) add_default_tier();
    name_devices();
    for (TierConfig& tier : config_.tiers) resolve_tier(tier);
    place_near_gpus(config_, machine_, findings_);
    check_memory();
    check_what_can_be_mapped();
    check_listening(config_, findings_);
    fit_connections(config_, machine_.open_files_max, findings_);
    if (!findings_.problems().none()) return std::unexpected(findings_.problems().error());
    warn_of_small_home();
    config_.warnings.insert(config_.warnings.end(), findings_.warnings().begin(), findings_.warnings().end());
    return std::move(config_);
  }

 private:
  void add_default_tier() {
    TierConfig tier;
    tier.kind = TierKind::kMemory;
    tier.capacity.percent = 100.0 / kDefaultMemoryPart;
    tier.capacity.bytes = whole_segments(machine_.memory_bytes / kDefaultMemoryPart);
    if (tier.capacity.bytes == 0)
      complain(tier, "tier", "no tier is configured, and the machine has no memory to spare");
    config_.tiers.push_back(tier);
  }

  void complain(const TierConfig& tier, const std::string& key, const std::string& what) {
    findings_.complain(tier.origin, key, what);
  }

  // Whether a key is wrong on which all else hangs: then nothing follows from the rest.
  bool is_unreadable(const TierConfig& tier) const {
    return findings_.unreadable(tier.origin, "kind") || findings_.unreadable(tier.origin, "device");
  }

  void resolve_tier(TierConfig& tier) {
    if (is_unreadable(tier)) return;
    if (tier.kind == TierKind::kBlock) return resolve_block(tier, findings_);
    if (tier.device.starts_with("cuda:")) return resolve_gpu(tier, machine_.cuda, findings_);
    if (tier.capacity.percent) tier.capacity.bytes = part_of(node_or_machine_bytes(tier), *tier.capacity.percent);
    round_to_segments(tier, findings_);
    check_node(tier);
    check_huge_pages(tier);
  }

  std::uint64_t node_or_machine_bytes(const TierConfig& tier) const {
    const topology::NumaNode* node = tier.numa_node ? machine_.numa_node(*tier.numa_node) : nullptr;
    return node != nullptr ? std::min(node->bytes, machine_.memory_bytes) : machine_.memory_bytes;
  }

  void check_node(const TierConfig& tier) {
    if (!tier.numa_node) return;
    const topology::NumaNode* node = machine_.numa_node(*tier.numa_node);
    if (node == nullptr) {
      std::vector<unsigned> known;
      for (const topology::NumaNode& each : machine_.numa_nodes) known.push_back(each.os_index);
      return complain(tier, "numa_node",
                      fmt::format("is {}, and this machine has {}; write one of them, or "
                                  "\"auto\"",
                                  *tier.numa_node, fmt::join(known, ", ")));
    }
    node_bytes_[*tier.numa_node] += tier.capacity.bytes;
    if (node_bytes_[*tier.numa_node] > node->bytes) {
      complain(tier, "capacity",
               fmt::format("the tiers on node {} come to {} with this one, and the node has "
                           "{}; make them smaller, or numa_node = \"auto\"",
                           *tier.numa_node, exact(node_bytes_[*tier.numa_node]), exact(node->bytes)));
    }
  }

  void check_huge_pages(const TierConfig& tier) {
    if (tier.huge_pages != HugePages::k2MiB) return;
    const topology::NumaNode* node = tier.numa_node ? machine_.numa_node(*tier.numa_node) : nullptr;
    const std::uint64_t pages = (tier.capacity.bytes + kHugePageBytes - 1) / kHugePageBytes;
    std::uint64_t wanted = huge_pages_ += pages;
    std::uint64_t reserved = machine_.huge_pages();
    std::uint64_t free = machine_.huge_pages_free();
    if (wanted <= reserved && node != nullptr) {
      wanted = node_huge_pages_[node->os_index] += pages;
      reserved = node->huge_pages;
      free = node->huge_pages_free;
    }
    const std::string where = node != nullptr ? fmt::format(" on node {}", node->os_index) : "";
    if (wanted > reserved)
      return complain(tier, "huge_pages",
                      fmt::format("is \"2MiB\", which takes {} huge pages, and {} are reserved{}; reserve more "
                                  "(vm.nr_hugepages), or write \"auto\"",
                                  wanted, reserved, where));
    if (wanted > free)
      findings_.warn(tier.origin, "huge_pages",
                     fmt::format("takes {} of {} huge pages reserved{}, and {} are free: unless it is this daemon that "
                                 "has the others, the tier cannot grow to its capacity",
                                 wanted, reserved, where, free));
  }

  // As many as there are, or as there were for the sessions that go on.
  std::size_t gpus_for(const TierConfig& tier) const {
    const topology::Cuda& cuda = machine_.cuda;
    const bool as_before = cuda.former && (tier.device == "auto" || !cuda.former->empty());
    return as_before ? cuda.former->size() : gpu_count(cuda);
  }

  // What "auto" and "cuda:all" stand for: as many tiers as there are GPUs, all alike.
  void name_devices() {
    std::vector<TierConfig> tiers;
    for (TierConfig& tier : config_.tiers) {
      const std::size_t gpus = gpus_for(tier);
      const bool every = tier.device == "cuda:all" || (tier.device == "auto" && gpus > 0);
      if ((every || tier.device == "auto") && gpus < gpu_count(machine_.cuda)) warn_of_later_gpus(tier, gpus);
      if (tier.device == "auto" && gpus == 0) {
        tier.device = "emulated";
        warn_of_unused_gpus();
      }
      if (!every || gpus == 0) tiers.push_back(tier);
      if (!every) continue;
      if (gpus == 0) complain(tier, "device", fmt::format("is \"cuda:all\": {}", machine_.cuda.why_not));
      for (std::size_t ordinal = 0; ordinal < gpus; ++ordinal) {
        tiers.push_back(tier);
        tiers.back().device = fmt::format("cuda:{}", ordinal);
      }
    }
    config_.tiers = std::move(tiers);
    check_devices();
    stay_with_former();
  }

  // The tier of a GPU stays that GPU's, whatever number the driver gives it now, or the configuration.
  void stay_with_former() {
    if (!machine_.cuda.former) return;
    auto former = machine_.cuda.former->begin();
    for (TierConfig& tier : config_.tiers) {
      if (!tier.gpu()) continue;
      if (former == machine_.cuda.former->end()) return;
      const std::string now = fmt::format("cuda:{}", *former++);
      if (now != tier.device)
        findings_.warn(tier.origin, "device",
                       fmt::format("would be {}, and stays the GPU that a former daemon had here, {} now, until its "
                                   "sessions have ended and the daemon is started again",
                                   tier.device, now));
      tier.device = now;
    }
  }

  void warn_of_later_gpus(const TierConfig& tier, std::size_t gpus) {
    findings_.warn(
        tier.origin, "device",
        fmt::format("is \"{}\", and there are {} GPUs where a former daemon had {}: the others are used once "
                    "its sessions have ended and the daemon is started again",
                    tier.device, gpu_count(machine_.cuda), gpus));
  }

  void warn_of_unused_gpus() {
    if (machine_.gpus.empty()) return;
    findings_.warn(
        fmt::format("the device tier is emulated in host memory, though there is {}: {}", machine_.gpus.front().name,
                    machine_.cuda.why_not.empty() ? "the CUDA driver was not asked" : machine_.cuda.why_not));
  }

  void check_devices() {
    std::size_t devices = 0;
    for (std::size_t i = 0; i < config_.tiers.size(); ++i) {
      const TierConfig& tier = config_.tiers[i];
      if (tier.kind != TierKind::kDevice) continue;
      if (++devices == kDevicesMax + 1)
        complain(tier, "", fmt::format("is one device tier more than the {} that are possible", kDevicesMax));
      for (std::size_t j = 0; j < i; ++j) {
        if (tier.device.starts_with("cuda:") && tier.device == config_.tiers[j].device)
          complain(tier, "device", fmt::format("is {} again; each GPU is one tier", tier.device));
      }
    }
  }

  void check_memory() {
    std::uint64_t sum = 0;
    const TierConfig* last = nullptr;
    for (const TierConfig& tier : config_.tiers) {
      if (!tier.takes_memory()) continue;
      // Each is below 2^63 bytes, so that one that wraps the sum is caught when it is added.
      if (sum + tier.capacity.bytes < sum) sum = UINT64_MAX - tier.capacity.bytes;
      sum += tier.capacity.bytes;
      last = &tier;
    }
    if (sum <= machine_.memory_bytes) return;
    complain(*last, "capacity",
             fmt::format("the tiers in memory (memory, and emulated devices) come to {}, and "
                         "what may be used is {}, by {}; make them smaller, or raise that limit",
                         exact(sum), exact(machine_.memory_bytes), machine_.memory_limit_source));
  }

  // Trainers map memory and devices; what several devices share lies in what all of them reach.
  void check_what_can_be_mapped() {
    std::size_t devices = 0;
    for (const TierConfig& tier : config_.tiers) {
      if (is_unreadable(tier) || tier.kind == TierKind::kMemory) return;
      devices += tier.kind == TierKind::kDevice ? 1 : 0;
    }
    const TierConfig& first = config_.tiers.front();
    if (devices == 0)
      return complain(first, "",
                      "is a block tier alone, which no trainer can map; put a memory or device tier above it");
    if (devices > 1 && config_.tiers.back().kind == TierKind::kDevice)
      complain(config_.tiers.back(), "",
               fmt::format("is the last of {} device tiers with nothing beneath them; add a memory or a block tier",
                           devices));
  }

  // The last tier holds every tensor's home; what stands above it caches and adds no capacity.
  void warn_of_small_home() {
    const TierConfig& home = config_.tiers.back();
    std::uint64_t above = 0;
    for (const TierConfig& tier : config_.tiers) above += &tier == &home ? 0 : tier.capacity.bytes;
    if (above <= home.capacity.bytes) return;
    findings_.warn(fmt::format(
        "the tiers above the {} tier have {}, and the {} tier, which holds every tensor's home, has {}: they cache and "
        "add no capacity, so no more than {} of tensors fit; set the {} tier's capacity to {} or more",
        name(home.kind), exact(above), name(home.kind), exact(home.capacity.bytes), format_bytes(home.capacity.bytes),
        name(home.kind), exact(above)));
  }

  Config config_;
  const topology::Machine& machine_;
  Findings findings_;
  std::map<unsigned, std::uint64_t> node_bytes_;
  std::uint64_t huge_pages_ = 0;  // that tiers so far must have, on any node
  std::map<unsigned, std::uint64_t> node_huge_pages_;
};

std::string node_text(const TierConfig& tier) {
  if (tier.numa_node) return fmt::format("node {}", *tier.numa_node);
  return tier.near_node ? fmt::format("any node, the GPUs' {} first", *tier.near_node) : "any node";
}

std::string tier_text(const TierConfig& tier) {
  const std::string size = format_bytes(tier.capacity.bytes);
  switch (tier.kind) {
    case TierKind::kBlock:
      return fmt::format("block, {}, {}", size, fmt::join(tier.paths, ", "));
    case TierKind::kDevice:
    case TierKind::kMemory:
      if (tier.failure) return fmt::format("device ({}), {}, NOT SERVING", tier.device, size);
      if (!tier.device_name.empty()) return fmt::format("device ({}, {}), {}", tier.device, tier.device_name, size);
      return fmt::format("{}{}, {}, {}, huge pages {}", name(tier.kind),
                         tier.device.empty() ? "" : fmt::format(" ({})", tier.device), size, node_text(tier),
                         name(tier.huge_pages));
  }
  check_failed("a TierKind", __FILE__, __LINE__);
}

}  // namespace

void round_to_segments(TierConfig& tier, Findings& findings) {
  const std::uint64_t wanted = tier.capacity.bytes;
  tier.capacity.bytes = whole_segments(wanted);
  if (tier.capacity.bytes == 0)
    return findings.complain(tier.origin, "capacity",
                             fmt::format("comes to less than 2 MiB here, one segment; write a larger {}",
                                         tier.capacity.percent ? "part" : "size"));
  if (tier.capacity.bytes == wanted || tier.capacity.percent) return;
  findings.warn(tier.origin, "capacity",
                fmt::format("of {}, {} are used: the tier gives memory out in whole segments, here of {}",
                            exact(wanted), exact(tier.capacity.bytes), format_bytes(segment_bytes(wanted))));
}

bool asks_for_gpus(const Config& config) {
  return std::ranges::any_of(
      config.tiers, [](const TierConfig& tier) { return tier.kind == TierKind::kDevice && tier.device != "emulated"; });
}

bool asks_for_gpu(const Config& config, int ordinal) {
  return std::ranges::any_of(config.tiers, [ordinal](const TierConfig& tier) {
    return tier.kind == TierKind::kDevice &&
           (tier.device == "auto" || tier.device == "cuda:all" || tier.gpu() == ordinal);
  });
}

Result<Config> resolve(Draft draft, const topology::Machine& machine) {
  return Resolver(std::move(draft), machine).run();
}

Result<Config> resolve(const Config& config, const topology::Machine& machine) {
  return resolve(Draft{config, Problems(config.source)}, machine);
}

Draft without_file(const std::string& runtime_dir) {
  Draft draft = read("", "defaults", runtime_dir).value();
  draft.config.source.clear();
  draft.config.origin.line = 0;
  return draft;
}

Result<Config> defaults(const topology::Machine& machine, const std::string& runtime_dir) {
  return resolve(without_file(runtime_dir), machine);
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
    if (!tier.takes_memory()) continue;
    memory_bytes += tier.capacity.bytes;
    if (tier.huge_pages != HugePages::kNever) result.huge_page_bytes += tier.capacity.bytes;
  }
  if (!result.block_paths.empty()) result.pinned_bytes = memory_bytes;
  return result;
}

}  // namespace terrace::config
