// SPDX-License-Identifier: Apache-2.0
#include "proposal/proposal.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/bytes.h"
#include "config/capacity.h"
#include "topology/cuda_probe.h"

namespace terrace::proposal {
namespace {

// A machine with less has little to spare beside its system.
constexpr std::uint64_t kSmallMachineBytes = 16 * kGiB;
// As the daemon does without a configuration.
constexpr std::uint64_t kSmallMachinePart = 4;
constexpr std::uint64_t kMachinePart = 2;
// Reserved huge pages below this part of the memory are somebody else's.
constexpr std::uint64_t kReservedPart = 4;
// Of the memory, what reserved huge pages may come to without leaving the system too little.
constexpr std::uint64_t kReservedPercentMax = 90;
// Of the free room of a file system.
constexpr std::uint64_t kBlockPercent = 80;

std::string machine_text(const topology::Machine& machine) {
  std::size_t without_cpus = 0;
  for (const topology::NumaNode& node : machine.numa_nodes) without_cpus += node.cpu_less() ? 1 : 0;
  return fmt::format("{} of memory ({}), NUMA nodes: {}{}, NVIDIA GPUs: {}, drives: {}",
                     format_bytes(machine.memory_bytes), machine.memory_limit_source, machine.numa_nodes.size(),
                     without_cpus == 0 ? "" : fmt::format(" ({} of memory alone)", without_cpus), machine.gpus.size(),
                     machine.block_devices.size());
}

Sized chosen_memory(const topology::Machine& machine) {
  const std::uint64_t all = machine.memory_bytes;
  const std::uint64_t reserved = machine.huge_pages() * kHugePageBytes;
  if (reserved >= all / kReservedPart && reserved <= all / 100 * kReservedPercentMax)
    return {
        config::whole_segments(reserved),
        fmt::format("the {} huge pages of 2 MiB that are reserved, which nothing else can use", machine.huge_pages())};
  const bool is_small = all < kSmallMachineBytes;
  return {config::whole_segments(all / (is_small ? kSmallMachinePart : kMachinePart)),
          fmt::format("{} of the {} that may be used (by {}); the rest is for trainers, the page cache and the system",
                      is_small ? "a quarter" : "half", format_bytes(all), machine.memory_limit_source)};
}

Result<Sized> memory_of(const topology::Machine& machine, const Wishes& wishes) {
  if (!wishes.memory_bytes) {
    Sized chosen = chosen_memory(machine);
    if (chosen.bytes != 0) return chosen;
    return fail(ErrorCode::kFailedPrecondition,
                fmt::format("{} of memory may be used, by {}, which is too little for a memory tier",
                            format_bytes(machine.memory_bytes), machine.memory_limit_source));
  }
  if (*wishes.memory_bytes > machine.memory_bytes)
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("--memory: {} are more than the {} that may be used, by {}", format_bytes(*wishes.memory_bytes),
                    format_bytes(machine.memory_bytes), machine.memory_limit_source));
  if (config::whole_segments(*wishes.memory_bytes) == 0)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--memory: {} are less than one segment, 2 MiB", format_bytes(*wishes.memory_bytes)));
  return Sized{config::whole_segments(*wishes.memory_bytes), "as it was asked for"};
}

// What all places hold in equal parts; those that share a file system share its room.
std::uint64_t room_of(const std::vector<Place>& places) {
  std::uint64_t least = UINT64_MAX;
  for (const Place& place : places) {
    const auto beside = static_cast<std::uint64_t>(std::ranges::count_if(
        places, [&place](const Place& other) { return other.file_system_id == place.file_system_id; }));
    least = std::min(least, place.room_bytes / std::max<std::uint64_t>(beside, 1));
  }
  return places.empty() ? 0 : least * places.size();
}

// Stripes are whole in every file.
std::uint64_t whole_stripes(std::uint64_t bytes, std::size_t files) {
  return bytes - bytes % (config::kStripeBytes * files);
}

Result<void> choose_block(const std::vector<Place>& found, Proposal& proposal) {
  const Wishes& wishes = proposal.wishes;
  const std::vector<Place>& places = wishes.places.empty() ? found : wishes.places;
  const std::uint64_t room = room_of(places);
  if (places.empty()) {
    proposal.no_block_why = "no local drive with ext4 or xfs that can be written was found";
    if (wishes.block_bytes)
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("--block-capacity: {}; name a folder with --block", proposal.no_block_why));
    return {};
  }
  if (wishes.block_bytes && *wishes.block_bytes > room)
    return fail(ErrorCode::kInvalidArgument, fmt::format("--block-capacity: {} are more than the {} that are free",
                                                         format_bytes(*wishes.block_bytes), format_bytes(room)));
  const std::uint64_t bytes = whole_stripes(wishes.block_bytes.value_or(room / 100 * kBlockPercent), places.size());
  const std::string why =
      wishes.block_bytes ? "as it was asked for"
                         : fmt::format("{} % of what is free in equal parts, {}; the rest keeps the file systems fast",
                                       kBlockPercent, format_bytes(room));
  if (bytes <= proposal.memory.bytes && !wishes.block_bytes) {
    proposal.no_block_why = fmt::format(
        "{} would be left for it, no more than the memory tier has, and the last tier holds every tensor's home",
        format_bytes(bytes));
    return {};
  }
  if (bytes == 0)
    return fail(ErrorCode::kInvalidArgument, fmt::format("--block-capacity: each of {} files takes {} at least",
                                                         places.size(), format_bytes(config::kStripeBytes)));
  proposal.block = BlockChoice{{bytes, why}, places};
  return {};
}

void choose_device(const topology::Machine& machine, bool has_driver, Proposal& proposal) {
  if (machine.gpus.empty()) {
    proposal.no_device_why = "this machine shows no NVIDIA GPU";
  } else if (!has_driver) {
    proposal.no_device_why =
        fmt::format("this machine has {} NVIDIA GPUs, and their driver is not loaded", machine.gpus.size());
  } else {
    proposal.device_why = fmt::format(
        "of each GPU's memory ({} are there); the rest is for the processes' CUDA contexts (about half a GiB each) and "
        "PyTorch's "
        "activations",
        machine.gpus.size());
  }
}

}  // namespace

Result<Proposal> propose(const topology::Machine& machine, bool has_driver, const std::vector<Place>& found,
                         const Wishes& wishes) {
  Proposal proposal;
  proposal.machine = machine_text(machine);
  proposal.wishes = wishes;
  auto memory = memory_of(machine, wishes);
  if (!memory) return std::unexpected(memory.error());
  proposal.memory = std::move(*memory);
  choose_device(machine, has_driver, proposal);
  if (const auto chosen = choose_block(found, proposal); !chosen) return std::unexpected(chosen.error());
  return proposal;
}

bool has_nvidia_driver(const std::string& root) {
  std::error_code error;
  return std::filesystem::exists(root + topology::kNvidiaDriver, error);
}

}  // namespace terrace::proposal
