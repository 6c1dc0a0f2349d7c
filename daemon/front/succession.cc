// SPDX-License-Identifier: Apache-2.0
#include "front/succession.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "base/mapping.h"
#include "engine/engine.h"
#include "front/node.h"

namespace terrace::front {
namespace {

constexpr std::chrono::seconds kPatience{8};
constexpr std::size_t kAnswerBytesMax = 16 * 1024;
constexpr int kCatalogNumber = 3;  // what the catalog is open as in the program that is asked

std::vector<char*> pointers_to(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Its process, with its output into `out` and nothing of ours but the catalog.
Result<pid_t> spawn(std::vector<std::string>& command, int catalog, int out) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out, STDERR_FILENO);
  posix_spawn_file_actions_adddup2(&actions, catalog, kCatalogNumber);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  sigset_t ignored;
  sigemptyset(&ignored);
  sigaddset(&ignored, SIGPIPE);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &ignored);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  pid_t pid = 0;
  const int error = posix_spawn(&pid, command[0].c_str(), &actions, &attributes, pointers_to(command).data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error == 0) return pid;
  return fail(ErrorCode::kFailedPrecondition, fmt::format("{} cannot be started: {}", command[0], std::strerror(error)),
              error);
}

// What comes until the other side closes; none if that takes too long.
std::optional<std::string> read_all(const Fd& from) {
  const auto limit = std::chrono::steady_clock::now() + kPatience;
  std::string text;
  std::array<char, 1024> piece{};
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(limit - std::chrono::steady_clock::now());
    if (left.count() <= 0) return std::nullopt;
    pollfd waited{.fd = from.get(), .events = POLLIN, .revents = 0};
    if (poll(&waited, 1, static_cast<int>(left.count())) <= 0) continue;
    const ssize_t got = read(from.get(), piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return text;
    if (text.size() < kAnswerBytesMax) text.append(piece.data(), static_cast<std::size_t>(got));
  }
}

int status_of(pid_t pid) {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

}  // namespace

Result<void> check_succession(const config::Config& config, int catalog) {
  struct stat there{};
  if (fstat(catalog, &there) != 0 || !S_ISREG(there.st_mode) || there.st_size <= 0)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} {}: no catalog is open as that", kCheckSuccession, catalog));
  const auto bytes = static_cast<std::uint64_t>(there.st_size);
  const auto mapped = AddressRange::map(catalog, bytes, PROT_READ);
  if (!mapped) return std::unexpected(mapped.error());
  return engine::Engine::check_succession(engine_options(config),
                                          {config.limits.sessions_max, config.limits.tensors_per_session_max},
                                          std::span<const std::byte>(mapped->data(), bytes));
}

Result<std::string> ask_successor(std::vector<std::string> command, const Fd& catalog) {
  command.insert(command.end(), {kCheckSuccession, std::to_string(kCatalogNumber)});
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return fail(ErrorCode::kResourceExhausted, "no descriptor is left", errno);
  const Fd answer(ends[0]);
  Fd out(ends[1]);
  const auto pid = spawn(command, catalog.get(), out.get());
  out.reset();
  if (!pid) return std::unexpected(pid.error());
  auto said = read_all(answer);
  if (!said) kill(*pid, SIGKILL);
  const int status = status_of(*pid);
  if (!said)
    return fail(ErrorCode::kDeadlineExceeded,
                fmt::format("{} did not answer within {} s", command[0], kPatience.count()));
  while (said->ends_with('\n')) said->pop_back();
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return std::move(*said);
  return fail(ErrorCode::kFailedPrecondition,
              fmt::format("{} could not go on: {}", command[0], said->empty() ? "it failed without a word" : *said));
}

}  // namespace terrace::front
