// SPDX-License-Identifier: Apache-2.0
// The daemon's configuration as plain values. parse.h reads it from TOML, resolve.h sets it against a machine;
// docs/reference/configuration.md says what each key means to an operator.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/error.h"

namespace terrace::config {

enum class TierKind : std::uint8_t { kDevice, kMemory, kBlock };
enum class HugePages : std::uint8_t {
  kAuto,   // 2 MiB pages where the kernel has reserved some, else ordinary ones
  kNever,  // ordinary pages
  k2MiB,   // 2 MiB pages or an error at start-up
};
enum class WriteBack : std::uint8_t {
  kAuto,   // early from a GPU, late from what is emulated
  kEarly,  // as soon as a link has time for it
  kLate,   // when its room is needed, or soon will be
};
// What a former daemon had in a GPU's memory, and this one cannot take back just now, though the supervisor has it.
enum class TakeBack : std::uint8_t {
  kWait,    // nothing is served before it can, as long as a tensor has its bytes there alone
  kGiveUp,  // it is lost
};
enum class LogLevel : std::uint8_t { kTrace, kDebug, kInfo, kWarn, kError };

// "device", "memory", "block": as in the file and in metrics' labels.
std::string_view name(TierKind kind);
std::string_view name(HugePages pages);
std::string_view name(LogLevel level);

// How large a tier is: as written, and after resolve() always in bytes.
struct Capacity {
  std::uint64_t bytes = 0;        // 0 until resolved where it was written in percent
  std::optional<double> percent;  // of the memory there is (device, memory) or of the file systems' room (block)
  bool operator==(const Capacity&) const = default;
};

// Where a section stands in the file, for messages.
struct Origin {
  std::string section;                                      // "tier[0]", counted as in the file; empty: the file's top
  std::uint32_t line = 0;                                   // where it begins; 0: it is not in a file
  std::map<std::string, std::uint32_t, std::less<>> lines;  // of the keys that were written

  bool has(std::string_view key) const { return lines.contains(key); }
  // The line of `key`, or of the section where the key was not written.
  std::uint32_t line_of(std::string_view key) const;
  // "tier[0].capacity"; the section alone for an empty key.
  std::string name_of(std::string_view key) const;
};

// One tier; the order in Config::tiers is fastest first, and the last one holds the homes.
struct TierConfig {
  TierKind kind = TierKind::kMemory;
  Capacity capacity;
  double high_mark = 0.9;             // share of the capacity above which pressure is reported, in (0, 1]
  std::optional<unsigned> numa_node;  // device (emulated) and memory: os index; none: the daemon chooses ("auto")
  std::optional<unsigned> near_node;  // memory, after resolve() where numa_node is none: its GPUs' node, taken first
  HugePages huge_pages = HugePages::kAuto;  // device (emulated) and memory
  std::string device;       // device: "auto", "cuda:all", "cuda:N" or "emulated"; after resolve() one of the last two
  std::string device_name;  // "cuda:N" after resolve(): the GPU, for people
  std::uint64_t gpu_identity = 0;                // "cuda:N" after resolve(): topology::CudaDevice::identity
  std::optional<Error> failure;                  // "cuda:N" after resolve(): why the GPU does not work; none: it does
  WriteBack write_back = WriteBack::kAuto;       // device: when what is dirty there is written down
  TakeBack take_back = TakeBack::kWait;          // device: what a former daemon had there and cannot be had just now
  std::vector<std::string> paths;                // block: the files, absolute; several stripe in equal parts
  std::uint64_t write_budget_bytes_per_day = 0;  // block: once it is spent nothing is written ahead of need; 0: none
  Origin origin{};

  // Whether its bytes lie in the machine's memory: a memory tier, and an emulated device. After resolve().
  bool takes_memory() const { return kind != TierKind::kBlock && !device.starts_with("cuda:"); }
  // N of "cuda:N"; none: it names no one GPU.
  std::optional<int> gpu() const;
  // After resolve().
  bool writes_back_early() const {
    return write_back == WriteBack::kEarly || (write_back == WriteBack::kAuto && gpu().has_value());
  }
};

// Where the daemon listens when a tenant has no sockets of its own. Absolute paths, at most 107 bytes.
struct Sockets {
  std::string data;   // our client library (SOCK_SEQPACKET)
  std::string grpc;   // every other client
  std::string admin;  // administration, mode 0600
  Origin origin{};
};

// Who may come in where. Each uid that comes through is a security domain of its own (terrace::Tenant).
struct TenantConfig {
  std::string name;                 // the metrics' label
  std::string data_socket;          // never empty, never shared with another tenant
  std::string grpc_socket;          // likewise
  std::vector<std::uint32_t> uids;  // allowed besides root; empty and not any_uid: the daemon's own uid
  bool any_uid = false;             // whoever reaches the socket
  std::uint64_t quota_bytes = 0;    // homes that each uid may hold; 0: as much as there is
  std::uint32_t weight = 1;         // of each uid, beside other tenants': of links, of guarantees by default, of plans
  Origin origin{};

  // Whether a peer of uid `uid` may connect to a daemon that runs as `own_uid`. Root always may.
  bool admits(std::uint32_t uid, std::uint32_t own_uid) const;
  // File mode of its sockets: open to all where other uids are admitted, since peers are then turned away by uid.
  std::uint32_t door_mode() const { return any_uid || !uids.empty() ? 0666 : 0600; }
};

// How fast bytes move between the tiers of this node, each direction by itself. 0: not said. What the daemon plans
// with, and what a simulator goes by, on whatever machine it runs.
struct Links {
  std::uint64_t host_to_device_bytes_per_s = 0;  // for each GPU
  std::uint64_t device_to_host_bytes_per_s = 0;
  std::uint64_t device_both_bytes_per_s = 0;  // both directions at once, together; 0: they do not slow each other down
  std::uint64_t device_within_bytes_per_s = 0;  // from one place in a device to another
  std::uint64_t memory_within_bytes_per_s = 0;
  std::uint32_t device_latency_us = 0;       // of each transfer, beside its bytes
  std::uint64_t block_read_bytes_per_s = 0;  // of all block files together
  std::uint64_t block_write_bytes_per_s = 0;
  std::uint64_t block_both_bytes_per_s = 0;
  std::uint32_t block_latency_us = 0;
  std::uint32_t block_read_drain_us = 0;  // of a read of 8 MiB or more; of a smaller one in proportion
  std::uint32_t request_latency_us = 0;   // of each of a trainer's requests, beside what it waits for
  Origin origin{};
};

// What decides what is given up, and what is moved ahead of time.
enum class Policy : std::uint8_t {
  kNextUse,  // learns each session's step, and plans the next one
  kLru,      // least recently used, on demand
  kS3Fifo,   // scan-resistant, on demand
};
inline constexpr std::array<std::string_view, 3> kPolicyNames = {"next-use", "lru", "s3-fifo"};

// The bounds of everything that a client can make grow.
struct Limits {
  std::uint32_t sessions_max = 256;
  std::uint32_t tensors_per_session_max = 65536;
  std::uint32_t connections_max = 512;              // on all sockets together
  std::uint32_t requests_queued_max = 4096;         // accepted and not yet answered
  std::uint32_t request_timeout_ms = 60'000;        // for a request that brings no deadline, and the longest one
  std::uint32_t session_idle_timeout_ms = 600'000;  // a gRPC session without a call for so long ends
  std::uint32_t stop_timeout_ms = 8'000;            // after SIGTERM, for what is in flight
};

struct Config {
  Sockets sockets;
  std::string metrics_address = "127.0.0.1:9464";  // host:port of /metrics; empty: off
  std::vector<TierConfig> tiers;                   // at least one after resolve()
  std::vector<TenantConfig> tenants;  // at least one; "default" on `sockets` where none is configured. Listen on these.
  Links links;
  Policy policy = Policy::kNextUse;
  Limits limits;
  bool strict = false;  // whatever the machine lacks is an error and not a line in the report
  LogLevel log_level = LogLevel::kInfo;
  Origin origin{};                    // of the keys above
  std::string source;                 // the file it was read from; empty: defaults
  std::vector<std::string> warnings;  // what resolve() found allowed but hardly meant
};

}  // namespace terrace::config
