// SPDX-License-Identifier: Apache-2.0
// What outlives the daemon's process (DESIGN decision 8): given to the supervisor before anybody relies on it, taken
// back at start, and gone on with when its trainer is back.
#include <fmt/format.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "base/bytes.h"
#include "front/host.h"
#include "front/survival/succession.h"

namespace terrace::front {
namespace {

constexpr const char* kChecksumsName = "checksums";

// Short: all names together are one string of the next daemon's environment.
constexpr char kRegion = 'r';
constexpr char kProcess = 'p';
constexpr char kDoorbell = 'd';

std::string name_of(SessionId id, char what) { return fmt::format("{}{}", what, static_cast<std::uint32_t>(id)); }

std::optional<Fd> take(service::Adopted& adopted, const std::string& name) {
  auto found = adopted.extract(name);
  if (found.empty()) return std::nullopt;
  return std::move(found.mapped());
}

// Whether it is a catalog, of whatever shape, of which no session lives.
bool is_nobodys(std::span<const std::byte> catalog) {
  const auto shape = engine::CatalogMemory::shape_of(catalog);
  if (!shape) return false;
  const auto view = engine::CatalogMemory::check(catalog, *shape);
  return view && std::ranges::none_of(view->sessions, &engine::SessionRecord::lives);
}

}  // namespace

// The engine, with the catalog that was left, or with one of its own.
Result<void> Host::make_engine() {
  const engine::CatalogShape shape{config_.limits.sessions_max, config_.limits.tensors_per_session_max};
  Result<void> opened;
  if (adopted_.contains(kCatalogName)) opened = open_catalog(shape);
  // A catalog of nobody's binds nobody to the tiers that it speaks of, or to its shape.
  const bool of_nobody = is_nobodys({catalog_range_.data(), catalog_range_.size()});
  if (!opened && !of_nobody) return opened;
  if (!catalog_ || of_nobody) {
    if (auto expected = expect_block(false); !expected) return expected;
    catalog_.reset();
    for (auto& [name, descriptor] : std::exchange(adopted_, {})) drop_kept(name);  // of no use
    if (auto made = make_catalog(shape); !made) return made;
    auto engine = engine::Engine::create(node_.options, *catalog_);
    if (!engine) return std::unexpected(engine.error());
    engine_ = std::move(*engine);
    return {};
  }
  return go_on();
}

// With the catalog that is open, and all that belongs to it.
Result<void> Host::go_on() {
  const std::span<const std::byte> bytes(catalog_range_.data(), catalog_range_.size());
  if (const auto fits = engine::Engine::check_succession(node_.options, catalog_->shape(), bytes); !fits) return fits;
  catalog_memory_ = *take(adopted_, kCatalogName);
  if (node_.block) {
    auto sums = take(adopted_, kChecksumsName);
    if (!sums)
      return fail(ErrorCode::kFailedPrecondition, "the checksums of the block tier did not come back with the catalog");
    if (auto taken = node_.block->adopt_checksums(std::move(*sums)); !taken) return taken;
  }
  for (const engine::TierRecord& tier : catalog_->tiers()) were_lost_.push_back(tier.lost != 0);
  std::vector<engine::Survivor> survivors;
  take_back_all(survivors);
  if (auto able = require_gpus(survivors); !able) return able;
  if (auto expected = expect_block(true); !expected) return expected;
  auto engine = engine::Engine::restore(node_.options, *catalog_, survivors, std::exchange(lost_segments_, {}));
  if (!engine) return std::unexpected(engine.error());
  engine_ = std::move(*engine);
  const auto status = engine_->status();
  std::erase_if(spaces_, [&](const auto& entry) {  // of shares that nobody has a part in any more
    if (std::ranges::find(status.sessions, entry.first, &engine::SessionStatus::session) != status.sessions.end())
      return false;
    for (const std::string& name : entry.second.kept) drop_kept(name);
    for (const auto& tier : node_.mapped)
      if (tier) tier->drop(entry.first);
    return true;
  });
  for (auto& [name, descriptor] : std::exchange(adopted_, {})) drop_kept(name);  // of sessions that have ended
  const engine::Restored restored = status.restored;
  spdlog::info("goes on for a former daemon: {} sessions, {} tensors; {} requests unanswered, {} transfers broken off",
               restored.sessions, restored.tensors, restored.unanswered_requests, restored.transfers);
  return {};
}

// The one that a former daemon left; it stays among what was adopted until it is known to be of use.
Result<void> Host::open_catalog(const engine::CatalogShape& shape) {
  struct stat there{};
  const Fd& memory = adopted_.at(kCatalogName);
  if (fstat(memory.get(), &there) != 0) return fail(ErrorCode::kInternal, "the catalog cannot be looked at", errno);
  const auto mapped = map_catalog(memory, static_cast<std::uint64_t>(there.st_size));
  if (!mapped) return std::unexpected(mapped.error());
  auto opened = engine::CatalogMemory::open(*mapped, shape);
  if (!opened) return std::unexpected(opened.error());
  catalog_ = std::move(*opened);
  return {};
}

Result<void> Host::make_catalog(const engine::CatalogShape& shape) {
  const std::uint64_t bytes = align_up(engine::CatalogMemory::bytes_needed(shape), kPageBytes);
  auto memory = sealed_memfd("terrace-catalog", bytes);
  if (!memory) return std::unexpected(memory.error());
  catalog_memory_ = std::move(*memory);
  const auto mapped = map_catalog(catalog_memory_, bytes);
  if (!mapped) return std::unexpected(mapped.error());
  catalog_ = engine::CatalogMemory::format(*mapped, shape);
  if (!store_.keeps()) return {};
  Result<void> stored = store_.store(kCatalogName, catalog_memory_.get());
  if (stored && node_.block) stored = store_.store(kChecksumsName, node_.block->checksums().descriptor());
  return stored;
}

Result<std::span<std::byte>> Host::map_catalog(const Fd& memory, std::uint64_t bytes) {
  auto mapped = AddressRange::map(memory.get(), bytes, PROT_READ | PROT_WRITE);
  if (!mapped) return std::unexpected(mapped.error());
  catalog_range_ = std::move(*mapped);
  return std::span<std::byte>(catalog_range_.data(), bytes);
}

// Spaces first: without its memory a session, or a share, is lost.
void Host::take_back_all(std::vector<engine::Survivor>& survivors) {
  const auto each = [&](auto use) {
    for (std::size_t record = 0; record < catalog_->shape().sessions_max; ++record)
      if (catalog_->session(record).lives()) use(catalog_->session(record));
  };
  std::vector<std::uint32_t> lost;
  each([&](const engine::SessionRecord& was) {
    if (was.share != 0 && !was.is_share()) return;
    auto back = take_back_segments(was);
    if (back) return;
    spdlog::error("{} {} is lost: {}", was.is_share() ? "share" : "session", was.id, back.error().message);
    lost.push_back(was.id);
  });
  each([&](const engine::SessionRecord& was) {
    if (was.is_share() || std::ranges::find(lost, was.share != 0 ? was.share : was.id) != lost.end()) return;
    if (auto back = take_back(was); !back)
      spdlog::error("session {} of pid {} is lost: {}", was.id, was.pid, back.error().message);
    else
      survivors.push_back({SessionId{was.id}, (*back)->region->table(), (*back)->region->completions_tail(),
                           (*back)->region->unanswered()});
  });
}

// A session's region, doorbell and process; its front part, away until its trainer resumes.
Result<Session*> Host::take_back(const engine::SessionRecord& was) {
  const SessionId id{was.id};
  auto session = std::make_unique<Session>();
  session->key = ++last_key_;
  session->id = id;
  session->state = Session::State::kOpen;
  session->peer.tenant = {engine::tenant_socket(node_.options, was).value(), was.uid};
  session->peer.pid = was.pid;
  session->token = was.token;
  session->space = SessionId{was.share != 0 ? was.share : was.id};
  session->maps = was.maps_segments != 0;
  session->writes = was.writes != 0;
  session->welcomed = true;
  Fd region_memory;
  const auto lost = [](const std::string& name) { return fail(ErrorCode::kDataLoss, name + " did not come back"); };
  for (const auto& [what, into] : {std::pair{kRegion, &region_memory}, std::pair{kProcess, &session->process},
                                   std::pair{kDoorbell, &session->doorbell}}) {
    if (into == &session->doorbell && !session->maps) continue;
    auto descriptor = take(adopted_, name_of(id, what));
    if (!descriptor) return lost(name_of(id, what));
    session->kept.push_back(name_of(id, what));
    *into = std::move(*descriptor);
  }
  auto region = SessionRegion::adopt(std::move(region_memory), config_.limits.tensors_per_session_max);
  if (!region) return std::unexpected(region.error());
  session->region.emplace(std::move(*region));
  return sessions_.emplace(id, std::move(session)).first->second.get();
}

// Once the ring runs: their processes are watched, and their doorbells.
Result<void> Host::watch_taken_back() {
  for (auto& [id, session] : sessions_) {
    register_token(*session);
    if (auto watched = watch_end(*session); !watched) return watched;
    if (!session->maps) continue;
    if (session->region->closed()) {
      end(*session, {ErrorCode::kCancelled, "closed by the client, while there was no daemon", 0});
      continue;
    }
    if (auto watched = watch_doorbell(*session); !watched) return watched;
  }
  return {};
}

bool Host::keep(const std::string& name, int descriptor) {
  if (!store_.keeps()) return false;
  auto stored = store_.store(name, descriptor);
  if (!stored) spdlog::error("{} will not outlive the daemon: {}", name, stored.error().message);
  return stored.has_value();
}

void Host::keep_session(Session& session) {
  const auto keeps = [&](char what, int descriptor) {
    if (keep(name_of(session.id, what), descriptor)) session.kept.push_back(name_of(session.id, what));
  };
  keeps(kRegion, session.region->descriptor());
  keeps(kProcess, session.process.get());
  if (session.maps) keeps(kDoorbell, session.doorbell.get());
}

void Host::drop_kept(const std::string& name) {
  if (auto forgotten = store_.forget(name); !forgotten)
    spdlog::warn("{} stays with the supervisor: {}", name, forgotten.error().message);
}

// `then` runs when the supervisor has what was given to it before this call: at once where nobody keeps anything.
void Host::when_kept(std::move_only_function<void()> then) {
  if (!store_.keeps()) return then();
  after_barrier_.push_back(std::move(then));
  if (!barrier_watch_) start_barrier();
}

void Host::start_barrier() {
  auto barrier = store_.barrier();
  if (barrier) {
    barrier_ = std::move(*barrier);
    auto watch = Watch::create(*ring_, barrier_.get(), POLLIN, [this](unsigned) { barrier_passed(); });
    if (watch) {
      barrier_watch_ = std::move(*watch);
      behind_barrier_ = std::exchange(after_barrier_, {});
      return;
    }
  }
  // A supervisor that has gone keeps nothing, and holds nobody up.
  for (auto& then : std::exchange(after_barrier_, {})) then();
}

void Host::barrier_passed() {
  spent_watches_.push_back(std::move(barrier_watch_));
  spent_barriers_.push_back(std::move(barrier_));
  for (auto& then : std::exchange(behind_barrier_, {})) then();
  if (!after_barrier_.empty() && !barrier_watch_) start_barrier();
  pump();
}

// A trainer is back, on a connection of its own: the session goes on with it.
void Host::resume(Session& newcomer, const shm::Resume& resume) {
  Session* session = find(SessionId{resume.session});
  if (newcomer.state != Session::State::kGreeting)
    return end(newcomer, {ErrorCode::kInvalidArgument, "a session is resumed on a connection of its own", 0});
  const bool known = session != nullptr && session->maps && session->state == Session::State::kOpen &&
                     session->token == resume.token && session->peer.tenant == newcomer.peer.tenant;
  if (!known)
    return end(newcomer,
               {ErrorCode::kNotFound, "there is no such session to resume: it ended, or this daemon is another", 0});
  if (session->connection) {
    const Error not_yet{ErrorCode::kUnavailable, "the session's former connection is not closed yet", 0};
    static_cast<void>(newcomer.connection->send(refusal(not_yet)));  // end() says nothing to whoever may come again
    return end(newcomer, not_yet);
  }
  session->connection = std::move(newcomer.connection);
  spent_watches_.push_back(std::move(newcomer.connection_watch));
  spent_watches_.push_back(std::move(newcomer.process_watch));
  auto node = newcomers_.extract(newcomer.key);
  node.mapped()->state = Session::State::kEnding;
  doomed_.push_back(std::move(node.mapped()));
  auto watch = Watch::create(*ring_, session->connection->descriptor(), POLLIN,
                             [this, session](unsigned) { read_messages(*session); });
  if (!watch) return end(*session, watch.error());
  session->connection_watch = std::move(*watch);
  session->unanswered = 0;
  shm::Resumed resumed;
  resumed.header.type = shm::MessageType::kResumed;
  resumed.session = resume.session;
  resumed.epoch = session->region->begin_epoch();
  send_segments(*session);
  send(*session, resumed);
  send_retiring(*session);
  spdlog::info("session {} goes on with pid {}", resume.session, session->peer.pid);
}

}  // namespace terrace::front
