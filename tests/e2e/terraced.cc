// SPDX-License-Identifier: Apache-2.0
#include "e2e/terraced.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/check.h"

namespace terrace::e2e {
namespace {

constexpr std::chrono::seconds kPatience{60};

std::filesystem::path make_folder(const std::filesystem::path& parent) {
  std::string name = (parent / "e2e-XXXXXX").string();
  TERRACE_CHECK(::mkdtemp(name.data()) != nullptr);
  return name;
}

void limit_descriptors(std::uint64_t count) {
  const rlimit limit{count, count};
  if (count != 0) ::setrlimit(RLIMIT_NOFILE, &limit);
}

pid_t start(const std::filesystem::path& config, const std::filesystem::path& log,
            const TerracedOptions& options = {}) {
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child != 0) return child;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // a test that crashes leaves nothing
  if (::getppid() != parent) ::_exit(1);
  const int out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  ::dup2(out, STDOUT_FILENO);
  ::dup2(out, STDERR_FILENO);
  limit_descriptors(options.descriptors);
  const std::string& argument = options.daemon_argument;
  if (options.supervised)
    ::execl(TERRACED, TERRACED, "supervise", "--restart-delay-max-ms", "20", "--config", config.c_str(),
            argument.empty() ? nullptr : "--", argument.c_str(), nullptr);
  else
    ::execl(TERRACED, TERRACED, "--config", config.c_str(), nullptr);
  ::_exit(127);
}

int exit_status(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 200 + WTERMSIG(status); }

std::string contents(const std::filesystem::path& file) {
  std::ifstream stream(file);
  std::ostringstream text;  // which takes the end of a process whose file it is, in /proc, for the file's
  text << stream.rdbuf();
  return text.str();
}

}  // namespace

Terraced::Terraced(const TerracedOptions& options)
    : options_(options), folder_(make_folder(std::filesystem::temp_directory_path())), disk_(make_folder(TEST_DISK)) {
  std::ofstream(folder_ / "terraced.toml") << configuration(folder_, block_file());
  if (options_.serves) start_again();
}

void Terraced::start_again() {
  pid_ = start(folder_ / "terraced.toml", folder_ / "log", options_);
  const bool up = eventually([this] {
    int status = 0;
    if (::waitpid(pid_, &status, WNOHANG) == pid_) {
      std::fprintf(stderr, "terraced ended with %d:\n%s\n", exit_status(status), log().c_str());
      std::abort();
    }
    return Client::connect({.socket = data_socket()}).has_value();
  });
  if (!up) std::fprintf(stderr, "terraced does not serve:\n%s\n", log().c_str());
  TERRACE_CHECK(up);
}

Terraced::~Terraced() {
  if (pid_ > 0) stop();
  std::filesystem::remove_all(folder_);
  std::filesystem::remove_all(disk_);
}

std::string Terraced::configuration(const std::filesystem::path& sockets, const std::filesystem::path& block) const {
  std::string text = options_.settings + "metrics_address = \"\"\n[limits]\n" + options_.limits + "\n[sockets]\n";
  for (const auto& [key, file] : {std::pair("data", "data.sock"), {"grpc", "terraced.sock"}, {"admin", "admin.sock"}}) {
    text += std::string(key) + " = \"" + (sockets / file).string() + "\"\n";
  }
  if (options_.any_uid) text += "[[tenant]]\nname = \"all\"\nuids = \"any\"\n";
  const auto tier = [&text](const char* kind, std::uint64_t mib, const std::string& more) {
    if (mib == 0) return;
    text += "[[tier]]\nkind = \"" + std::string(kind) + "\"\ncapacity = \"" + std::to_string(mib) + "MiB\"\n" + more;
  };
  tier("device", options_.device_mib,
       "device = \"" + options_.device + "\"\nwrite_back = \"" + options_.write_back + "\"\n");
  tier("memory", options_.memory_mib, "");
  tier("block", options_.block_mib, "paths = [\"" + block.string() + "\"]\n");
  return text;
}

pid_t Terraced::daemon() const {
  if (!options_.supervised) return pid_;
  const std::string pid = std::to_string(pid_);
  std::ifstream children("/proc/" + pid + "/task/" + pid + "/children");
  pid_t child = 0;
  children >> child;
  return child;
}

std::string Terraced::log() const { return contents(folder_ / "log"); }

bool Terraced::replace(int signal) const {
  pid_t before = 0;  // the kernel's list of children may miss one while another one ends
  if (!eventually([&] { return (before = daemon()) != 0; }) || ::kill(before, signal) != 0) return false;
  return eventually([&] { return daemon() != 0 && daemon() != before; });
}

Terraced::Ended Terraced::administer(const std::string& arguments) const {
  const std::string command =
      std::string(TERRACECTL) + " --socket " + admin_socket() + " " + arguments + " 2>&1 </dev/null";
  FILE* pipe = ::popen(command.c_str(), "r");
  TERRACE_CHECK(pipe != nullptr);
  std::string text;
  std::array<char, 4096> piece{};
  while (const std::size_t read = std::fread(piece.data(), 1, piece.size(), pipe)) text.append(piece.data(), read);
  return {exit_status(::pclose(pipe)), text};
}

nlohmann::json Terraced::status() const {
  const Ended asked = administer("--json status");
  if (asked.status != 0) std::fprintf(stderr, "%s%s", asked.said.c_str(), log().c_str());
  TERRACE_CHECK(asked.status == 0);
  return nlohmann::json::parse(asked.said);
}

Client Terraced::connect(ConnectOptions options) const {
  options.socket = data_socket();
  Result<Client> client = Client::connect(options);
  if (!client) std::fprintf(stderr, "no session: %s\n%s\n", client.error().message.c_str(), log().c_str());
  TERRACE_CHECK(client.has_value());
  return std::move(*client);
}

bool Terraced::serves_on() const {
  Result<Client> client = Client::connect({.socket = data_socket(), .label = "serves on"});
  if (!client) return false;
  const Result<Tensor> tensor = client->create({.name = "probe", .bytes = 100'000});
  if (!tensor) return false;
  Result<Lease> written = client->acquire(*tensor, {.mode = Mode::kOverwrite});
  if (!written) return false;
  fill(written->writable_bytes(), 1, 1);
  if (!written->release()) return false;
  if (options_.block_mib != 0 && !client->swap_out({&*tensor, 1})) return false;
  const Result<Lease> read = client->acquire(*tensor);
  return read && first_difference(read->bytes(), 1, 1) == read->bytes().size();
}

int Terraced::stop() {
  ::kill(pid_, SIGTERM);
  int status = 0;
  TERRACE_CHECK(::waitpid(pid_, &status, 0) == pid_);
  pid_ = -1;
  return exit_status(status);
}

void Terraced::crash() {
  const pid_t inner = daemon();
  ::kill(pid_, SIGKILL);
  if (inner != 0 && inner != pid_) ::kill(inner, SIGKILL);
  TERRACE_CHECK(::waitpid(pid_, nullptr, 0) == pid_);
  pid_ = -1;
  // A zombie has no command line any more, and its descriptors are closed.
  const std::string command = "/proc/" + std::to_string(inner) + "/cmdline";
  TERRACE_CHECK(inner == 0 || eventually([&] { return contents(command).empty(); }));
}

Terraced::Ended Terraced::run_second(bool own_sockets, bool own_block) const {
  const std::filesystem::path folder = make_folder(folder_);
  const std::filesystem::path config = folder / "terraced.toml";
  std::ofstream(config) << configuration(own_sockets ? folder : folder_,
                                         own_block ? disk_ / "second" : std::filesystem::path(block_file()));
  const pid_t second = start(config, folder / "log");
  int status = 0;
  if (!eventually([&] { return ::waitpid(second, &status, WNOHANG) == second; })) {
    ::kill(second, SIGKILL);
    ::waitpid(second, &status, 0);
  }
  return {exit_status(status), contents(folder / "log")};
}

Process::Process(const std::function<int()>& body) : pid_(::fork()) {
  if (pid_ != 0) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::_exit(body());
}

Process::~Process() {
  if (pid_ <= 0) return;
  kill();
  wait();
}

void Process::kill() { ::kill(pid_, SIGKILL); }

int Process::wait() {
  int status = 0;
  TERRACE_CHECK(::waitpid(pid_, &status, 0) == pid_);
  pid_ = -1;
  return exit_status(status);
}

bool eventually(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace terrace::e2e
