// SPDX-License-Identifier: Apache-2.0
// A real terraced for one test: small tiers of every kind, sockets and files of its own, and gone with the object.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "bench/contents.h"
#include "terrace/client.h"

namespace terrace::e2e {

inline constexpr std::uint64_t kMiB = 1ull << 20;

struct TerracedOptions {
  std::uint64_t device_mib = 8;  // 0: no such tier (so for all three)
  std::uint64_t memory_mib = 16;
  std::uint64_t block_mib = 64;
  bool supervised = false;  // by `terraced supervise`, which starts it again whenever it ends
  std::string device = "emulated";
  std::string write_back = "auto";  // of the device tier
  std::string daemon_argument{};    // one more, of supervised daemons
  bool serves = true;               // false: no daemon but those of run_second()
  std::string limits{};             // lines of the configuration's [limits]
  std::uint64_t descriptors = 0;    // its RLIMIT_NOFILE; 0: the test's own
  std::string block_path{};         // instead of a file of its own
  bool any_uid = false;             // every user may connect, and not root alone
  std::string settings{};           // lines of the configuration's beginning
};

class Terraced {
 public:
  // Starts it and waits until it serves; aborts with its log if it does not.
  explicit Terraced(const TerracedOptions& options = {});
  Terraced(const Terraced&) = delete;
  Terraced& operator=(const Terraced&) = delete;
  ~Terraced();

  std::string data_socket() const { return (folder_ / "data.sock").string(); }
  std::string admin_socket() const { return (folder_ / "admin.sock").string(); }
  std::string configuration_file() const { return (folder_ / "terraced.toml").string(); }
  std::string block_file() const {
    return options_.block_path.empty() ? (disk_ / "block").string() : options_.block_path;
  }
  pid_t pid() const { return pid_; }
  // The daemon itself: pid(), or its child where that is the supervisor. 0: none just now.
  pid_t daemon() const;
  // What it has said so far.
  std::string log() const;
  // Has the daemon end by a signal; true once its supervisor has started another one.
  bool replace(int signal) const;
  // Its status as `terracectl --json status` prints it.
  nlohmann::json status() const;
  // A new session; aborts if there is none.
  Client connect(ConnectOptions options = {}) const;
  // Whether it is there and does what it should for a new client: creates, writes, swaps out and reads back.
  bool serves_on() const;
  // SIGTERM; its exit status.
  int stop();
  // SIGKILL, to the supervisor too; then another one with the same configuration and block file.
  void crash();
  void start_again();

  struct Ended {
    int status = 0;  // of its exit
    std::string said;
  };
  // Runs terracectl with these arguments on it.
  Ended administer(const std::string& arguments) const;
  // Runs another daemon with this one's configuration to its end. The other one's configuration: own sockets or this
  // one's, own block file or this one's.
  Ended run_second(bool own_sockets, bool own_block) const;

 private:
  std::string configuration(const std::filesystem::path& sockets, const std::filesystem::path& block) const;

  TerracedOptions options_;
  std::filesystem::path folder_;  // sockets: a short path
  std::filesystem::path disk_;    // the block file: on the build's disk, which has O_DIRECT
  pid_t pid_ = -1;
};

// A child process that runs `body` and exits with what it returns.
class Process {
 public:
  explicit Process(const std::function<int()>& body);
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process();

  pid_t pid() const { return pid_; }
  void kill();
  // Its exit status; 200 + the signal that ended it.
  int wait();

 private:
  pid_t pid_ = -1;
};

// Looks until `condition` holds; false after 60 s.
bool eventually(const std::function<bool()>& condition);

using bench::fill;
using bench::first_difference;

}  // namespace terrace::e2e
