// SPDX-License-Identifier: Apache-2.0
// A real terraced for one suite: sockets and files of its own, and gone with the object.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "bench/leftovers.h"
#include "terrace/client.h"

namespace terrace::bench {

struct DaemonOptions {
  std::uint64_t device_bytes = 0;  // emulated; 0: no such tier (so for all three)
  std::uint64_t memory_bytes = 0;
  std::uint64_t block_bytes = 0;
  std::string limits{};     // lines of the configuration's [limits]
  std::string policy{};     // the configuration's; empty: its default
  std::string links{};      // the configuration's section [links], whole
  bool supervised = false;  // by `terraced supervise`, which keeps what it holds and starts it again
  bool waits = true;        // start() returns once it serves; false: as soon as it is there, see serves()
};

class PrivateDaemon {
 public:
  // `terraced`: the binary. `disk`: a folder of a file system with O_DIRECT, for the block file. kUnavailable with the
  // end of what it said, where it does not come to serve within a minute.
  static Result<PrivateDaemon> start(const std::string& terraced, const std::filesystem::path& disk,
                                     const DaemonOptions& options);
  PrivateDaemon(PrivateDaemon&&) noexcept = default;
  PrivateDaemon& operator=(PrivateDaemon&&) noexcept = default;
  PrivateDaemon(const PrivateDaemon&) = delete;
  PrivateDaemon& operator=(const PrivateDaemon&) = delete;
  ~PrivateDaemon();

  std::string data_socket() const { return (sockets_.path() / "data.sock").string(); }
  std::string grpc_socket() const { return (sockets_.path() / "terraced.sock").string(); }
  std::string admin_socket() const { return (sockets_.path() / "admin.sock").string(); }
  std::string block_file() const { return (disk_.path() / "block").string(); }
  // The daemon itself, also where it is supervised; 0: none just now.
  pid_t pid() const;
  // Its reactor's thread, which has the process's number.
  pid_t reactor() const { return pid(); }
  // Whether it answers a client.
  bool serves() const;
  // A new session.
  Result<Client> connect(ConnectOptions options = {}) const;
  // What it has said so far.
  std::string log() const;
  // SIGTERM, and waits for its end.
  void stop();
  // Of a supervised one: kills the daemon; its supervisor starts another, which takes over.
  void kill_inner() const;

 private:
  PrivateDaemon() = default;
  Folder sockets_;  // a short path
  Folder disk_;     // none without a block tier
  Child process_;   // before its folders goes
  bool supervised_ = false;
};

// The daemon's binary: `named` if it is not empty, else the one beside this program, else the PATH's. kNotFound says
// where it was looked for.
Result<std::string> find_terraced(const std::string& named);

}  // namespace terrace::bench
