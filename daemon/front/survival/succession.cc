// SPDX-License-Identifier: Apache-2.0
#include "front/survival/succession.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include "base/mapping.h"
#include "config/capacity.h"
#include "engine/engine.h"
#include "front/node/node.h"

namespace terrace::front {
namespace {

constexpr std::chrono::seconds kCommandPatience{8};
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
  posix_spawnattr_setpgroup(&attributes, 0);  // what it starts itself can be ended with it
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  pid_t pid = 0;
  const int error = posix_spawn(&pid, command[0].c_str(), &actions, &attributes, pointers_to(command).data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error == 0) return pid;
  return fail(ErrorCode::kFailedPrecondition, fmt::format("{} cannot be started: {}", command[0], std::strerror(error)),
              error);
}

// What comes until the other side closes; none if that takes too long.
std::optional<std::string> read_all(const Fd& from, std::chrono::steady_clock::time_point limit) {
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

// Its exit status; one that has not ended by the limit is killed.
int status_of(pid_t pid, std::chrono::steady_clock::time_point limit) {
  int status = 0;
  while (waitpid(pid, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() >= limit) kill(-pid, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return status;
}

Result<AddressRange> map_to_look(int catalog) {
  struct stat there{};
  if (fstat(catalog, &there) != 0 || !S_ISREG(there.st_mode) || there.st_size <= 0)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} {}: no catalog is open as that", kCheckSuccession, catalog));
  return AddressRange::map(catalog, static_cast<std::uint64_t>(there.st_size), PROT_READ);
}

std::span<const std::byte> bytes_of(const AddressRange& range) { return {range.data(), range.size()}; }

engine::CatalogShape shape_of(const config::Config& config) {
  return {config.limits.sessions_max, config.limits.tensors_per_session_max};
}

// Whether a tier as it is configured now could come to what that one had.
bool may_have(const config::TierConfig& tier, const engine::TierOptions& options, const engine::TierRecord& before) {
  const std::uint64_t bytes = before.capacity_bytes;
  if (bytes == 0 || before.kind != engine::tier_record(options).kind) return false;
  if (tier.kind != config::TierKind::kBlock) return config::whole_segments(bytes) == bytes;
  return bytes % (tier::BlockFile::kStripeBytes * tier.paths.size()) == 0;
}

// What a catalog of whatever shape says, if sessions live in it.
std::optional<engine::CatalogMemory::View> lived_in(std::span<const std::byte> catalog,
                                                    const std::optional<engine::CatalogShape>& shape) {
  if (!shape) return std::nullopt;
  const auto view = engine::CatalogMemory::check(catalog, *shape);
  if (!view || std::ranges::none_of(view->sessions, &engine::SessionRecord::lives)) return std::nullopt;
  return *view;
}

bool was_gpu(const engine::TierRecord& before) {
  return before.kind == engine::tier_record({.name = {}, .kind = tier::Kind::kDevice}).kind && before.identity != 0;
}

FormerGpus former_gpus(std::span<const std::byte> catalog) {
  const auto view = lived_in(catalog, engine::CatalogMemory::shape_of(catalog));
  if (!view) return std::nullopt;
  std::vector<std::uint64_t> identities;
  for (const engine::TierRecord& tier : view->tiers)
    if (was_gpu(tier)) identities.push_back(tier.identity);
  return identities;
}

// Whether a tier is of a GPU that this program cannot use, and what sessions have there it would wait for. (Where
// there is no room beside the daemon that runs, there may be after it.)
Result<void> check_gpus(const config::Config& config, std::span<const std::byte> catalog) {
  const auto view = lived_in(catalog, shape_of(config));
  for (std::size_t tier = 0; view && tier < config.tiers.size(); ++tier) {
    const auto& failure = config.tiers[tier].failure;
    const bool waits = failure && failure->code != ErrorCode::kDataLoss && view->tiers[tier].lost == 0 &&
                       failure->code != ErrorCode::kResourceExhausted &&
                       config.tiers[tier].take_back == config::TakeBack::kWait;
    const auto has_some = [tier](const engine::SessionRecord& session) {
      return session.lives() && session.mapped_bytes[tier] != 0;
    };
    if (waits && std::ranges::any_of(view->sessions, has_some))
      return fail(ErrorCode::kFailedPrecondition, fmt::format("sessions have memory in {}, which it cannot use: {}",
                                                              config.tiers[tier].device, failure->message));
  }
  return {};
}

config::Config continued(config::Config config, std::span<const std::byte> catalog) {
  const auto view = lived_in(catalog, shape_of(config));
  if (!view) return config;
  const engine::Options options = engine_options(config);
  const std::size_t tiers = std::min(config.tiers.size(), view->tiers.size());
  for (std::size_t tier = 0; tier < tiers; ++tier) {
    const engine::TierRecord& before = view->tiers[tier];
    if (config.tiers[tier].capacity.percent && may_have(config.tiers[tier], options.tiers[tier], before))
      config.tiers[tier].capacity.bytes = before.capacity_bytes;
  }
  return config;
}

}  // namespace

FormerGpus former_gpus(const service::Adopted& adopted) {
  const auto catalog = adopted.find(kCatalogName);
  return catalog == adopted.end() ? std::nullopt : former_gpus(catalog->second.get());
}

FormerGpus former_gpus(int catalog) {
  const auto mapped = map_to_look(catalog);
  return mapped ? former_gpus(bytes_of(*mapped)) : std::nullopt;
}

config::Config continued(config::Config config, const service::Adopted& adopted) {
  const auto catalog = adopted.find(kCatalogName);
  if (catalog == adopted.end()) return config;
  const auto mapped = map_to_look(catalog->second.get());
  return mapped ? continued(std::move(config), bytes_of(*mapped)) : config;
}

Result<void> check_succession(const config::Config& config, int catalog) {
  const auto mapped = map_to_look(catalog);
  if (!mapped) return std::unexpected(mapped.error());
  const auto fits = engine::Engine::check_succession(engine_options(continued(config, bytes_of(*mapped))),
                                                     shape_of(config), bytes_of(*mapped));
  return fits ? check_gpus(config, bytes_of(*mapped)) : fits;
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
  const auto limit = std::chrono::steady_clock::now() + kCommandPatience;
  auto said = read_all(answer, limit);
  if (!said) kill(-*pid, SIGKILL);
  const int status = status_of(*pid, limit);
  if (!said)
    return fail(ErrorCode::kDeadlineExceeded,
                fmt::format("{} did not answer within {} s", command[0], kCommandPatience.count()));
  while (said->ends_with('\n')) said->pop_back();
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
    if (said->starts_with(kGoesOn)) return said->substr(kGoesOn.size());
    return fail(ErrorCode::kFailedPrecondition, fmt::format("{} is no terraced that knows of upgrades", command[0]));
  }
  return fail(ErrorCode::kFailedPrecondition,
              fmt::format("{} could not go on: {}", command[0], said->empty() ? "it failed without a word" : *said));
}

}  // namespace terrace::front
