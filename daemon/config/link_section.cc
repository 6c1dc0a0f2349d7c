// SPDX-License-Identifier: Apache-2.0
// [links]
#include "config/sections.h"

namespace terrace::config {
namespace {

constexpr std::int64_t kLatencyUsMax = 1'000'000;

void read_speed(Section& section, std::string_view key, std::uint64_t& bytes_per_s) {
  if (const auto speed = section.bytes_per("s", key, "a speed above 0, such as \"55GB/s\" or \"3.2GiB/s\""))
    bytes_per_s = *speed;
}

void read_latency(Section& section, std::string_view key, std::uint32_t& latency_us) {
  if (const auto given = section.integer(key, 0, kLatencyUsMax)) latency_us = static_cast<std::uint32_t>(*given);
}

}  // namespace

void read_links(const toml::table* table, Problems& problems, Links& links) {
  if (table == nullptr) return;
  Section section(*table, "links", problems);
  links.origin = section.origin();
  read_speed(section, "host_to_device", links.host_to_device_bytes_per_s);
  read_speed(section, "device_to_host", links.device_to_host_bytes_per_s);
  read_speed(section, "device_both", links.device_both_bytes_per_s);
  read_latency(section, "device_latency_us", links.device_latency_us);
  read_speed(section, "device_within", links.device_within_bytes_per_s);
  read_speed(section, "memory_within", links.memory_within_bytes_per_s);
  read_speed(section, "block_read", links.block_read_bytes_per_s);
  read_speed(section, "block_write", links.block_write_bytes_per_s);
  read_speed(section, "block_both", links.block_both_bytes_per_s);
  read_latency(section, "block_latency_us", links.block_latency_us);
  read_latency(section, "block_read_drain_us", links.block_read_drain_us);
  read_latency(section, "request_latency_us", links.request_latency_us);
  section.finish();
}

}  // namespace terrace::config
