// SPDX-License-Identifier: Apache-2.0
#include "bench/private_daemon.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>

#include "base/bytes.h"

namespace terrace::bench {
namespace {

constexpr std::chrono::seconds kPatience{60};
constexpr std::size_t kSaidShown = 2000;

std::string configuration(const PrivateDaemon& daemon, const DaemonOptions& options) {
  std::string text = fmt::format(
      "metrics_address = \"\"\nlog_level = \"warn\"\n[sockets]\ndata = \"{}\"\ngrpc = \"{}\"\nadmin = "
      "\"{}\"\n[limits]\n{}\n",
      daemon.data_socket(), daemon.grpc_socket(), daemon.admin_socket(), options.limits);
  if (!options.policy.empty()) text.insert(0, fmt::format("policy = \"{}\"\n", options.policy));
  text += options.links;
  const auto tier = [&text](const char* kind, std::uint64_t bytes, const std::string& more) {
    if (bytes != 0) text += fmt::format("[[tier]]\nkind = \"{}\"\ncapacity = \"{}\"\n{}", kind, bytes, more);
  };
  tier("device", options.device_bytes, "device = \"emulated\"\n");
  tier("memory", options.memory_bytes, "");
  tier("block", options.block_bytes, fmt::format("paths = [\"{}\"]\n", daemon.block_file()));
  return text;
}

bool is_program(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error) && ::access(path.c_str(), X_OK) == 0;
}

}  // namespace

Result<PrivateDaemon> PrivateDaemon::start(const std::string& terraced, const std::filesystem::path& disk,
                                           const DaemonOptions& options) {
  PrivateDaemon daemon;
  auto sockets = Folder::make_temporary();
  if (!sockets) return std::unexpected(sockets.error());
  daemon.sockets_ = std::move(*sockets);
  if (options.block_bytes != 0) {
    auto on_disk = Folder::make(disk);
    if (!on_disk) return std::unexpected(on_disk.error());
    daemon.disk_ = std::move(*on_disk);
  }
  daemon.supervised_ = options.supervised;
  const std::filesystem::path file = daemon.sockets_.path() / "terraced.toml";
  std::ofstream(file) << configuration(daemon, options);
  std::vector<std::string> command{terraced};
  if (options.supervised) command.insert(command.end(), {"supervise", "--restart-delay-max-ms", "1"});
  command.insert(command.end(), {"--config", file.string()});
  auto process = Child::run(command, daemon.sockets_.path() / "log");
  if (!process) return std::unexpected(process.error());
  daemon.process_ = std::move(*process);
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (options.waits && !daemon.serves()) {
    if (daemon.process_.ended() || std::chrono::steady_clock::now() > end) {
      const std::string said = daemon.log();
      return fail(ErrorCode::kUnavailable, fmt::format("{} does not come to serve; it said last:\n{}", terraced,
                                                       said.substr(said.size() - std::min(said.size(), kSaidShown))));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return daemon;
}

PrivateDaemon::~PrivateDaemon() { stop(); }

pid_t PrivateDaemon::pid() const {
  if (!supervised_) return process_.pid();
  pid_t child = 0;
  std::ifstream(fmt::format("/proc/{0}/task/{0}/children", process_.pid())) >> child;
  return child;
}

bool PrivateDaemon::serves() const {
  return Client::connect({.socket = data_socket(), .reconnect_timeout = {}}).has_value();
}

Result<Client> PrivateDaemon::connect(ConnectOptions options) const {
  options.socket = data_socket();
  if (options.label.empty()) options.label = "terrace-bench";
  return Client::connect(options);
}

std::string PrivateDaemon::log() const {
  std::ifstream stream(sockets_.path() / "log");
  return {std::istreambuf_iterator<char>(stream), {}};
}

void PrivateDaemon::stop() {
  if (process_.pid() <= 0) return;
  process_.signal(SIGTERM);
  process_.wait();
}

void PrivateDaemon::kill_inner() const {
  if (const pid_t inner = pid(); supervised_ && inner > 0) ::kill(inner, SIGKILL);
}

Result<std::string> find_terraced(const std::string& named) {
  if (!named.empty()) {
    std::error_code error;
    if (const auto path = std::filesystem::absolute(named, error); !error && is_program(path)) return path.string();
    return fail(ErrorCode::kNotFound, named + " is not a program that can be run; name terraced with --terraced PATH");
  }
  const std::filesystem::path beside = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "terraced";
  if (is_program(beside)) return beside.string();
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');)
    if (is_program(std::filesystem::path(folder) / "terraced")) return folder + "/terraced";
  return fail(ErrorCode::kNotFound, fmt::format("terraced was not found: it is not {}, nor on the PATH; name it with "
                                                "--terraced PATH",
                                                beside.string()));
}

}  // namespace terrace::bench
