// SPDX-License-Identifier: Apache-2.0
// A configuration file: parse() and resolve() take it or name what is wrong, with a line for each problem. Block tiers
// are parsed and checked, and not set against a disk.
#include <string_view>

#include "base/check.h"
#include "config/parse.h"
#include "config/resolve.h"

namespace terrace::fuzz {
namespace {

topology::Machine machine() {
  topology::Machine machine;
  machine.numa_nodes = {{.os_index = 0, .bytes = 64ull << 30, .cpus = {0, 1}, .huge_pages = 100, .huge_pages_free = 50},
                        {.os_index = 2, .bytes = 32ull << 30, .cpus = {}}};
  machine.memory_bytes = machine.memory_total_bytes = 96ull << 30;
  machine.memory_limit_source = "MemTotal";
  machine.memlock_bytes = topology::kUnlimited;
  machine.io_uring.available = true;
  topology::CudaDevice gpu{};
  gpu.name = "a GPU";
  gpu.free_bytes = 79ull << 30;
  gpu.total_bytes = 80ull << 30;
  machine.cuda.devices = {gpu, gpu};
  return machine;
}

void run(std::string_view text) {
  static const topology::Machine here = machine();
  const auto refused = [](const Error& error) {
    TERRACE_CHECK(error.code == ErrorCode::kInvalidArgument && !error.message.empty());
  };
  auto parsed = config::parse(text, "fuzzed.toml", "/run/terrace");
  if (!parsed) return refused(parsed.error());
  TERRACE_CHECK(!parsed->tenants.empty() && parsed->tiers.size() <= config::kTiersMax);
  for (const config::TenantConfig& tenant : parsed->tenants) {
    TERRACE_CHECK(!tenant.data_socket.empty() && tenant.data_socket.size() <= config::kSocketPathBytesMax);
    static_cast<void>(tenant.admits(1000, 0));
  }
  std::erase_if(parsed->tiers, [](const config::TierConfig& tier) { return tier.kind == config::TierKind::kBlock; });
  static_cast<void>(config::asks_for_gpus(*parsed));
  const auto resolved = config::resolve(*parsed, here);
  if (!resolved) return refused(resolved.error());
  for (const config::TierConfig& tier : resolved->tiers) TERRACE_CHECK(tier.capacity.bytes > 0);
}

}  // namespace
}  // namespace terrace::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  terrace::fuzz::run({reinterpret_cast<const char*>(data), size});
  return 0;
}
