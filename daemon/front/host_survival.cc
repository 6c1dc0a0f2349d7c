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

}  // namespace

Result<void> Host::make_engine() {
  const config::Limits& limits = config_.limits;
  const engine::CatalogShape shape{limits.sessions_max, limits.tensors_per_session_max};
  Result<void> opened;
  if (const auto left = adopted_.find(kCatalogName); left != adopted_.end()) opened = home_.open(left->second, shape);
  // A catalog of nobody's binds nobody to the tiers that it speaks of, or to its shape.
  const bool of_nobody = home_.is_nobodys();
  if (!opened && !of_nobody) return opened;
  return !home_.is_open() || of_nobody ? begin_afresh(shape) : go_on();
}

Result<void> Host::begin_afresh(const engine::CatalogShape& shape) {
  if (auto expected = block_.expect(false); !expected) return expected;
  home_.give_up();
  for (auto& [name, descriptor] : std::exchange(adopted_, {})) keeper_.drop(name);  // of no use
  if (auto made = home_.make(shape); !made) return made;
  if (keeper_.keeps()) {
    Result<void> stored = keeper_.require(kCatalogName, home_.memory().get());
    if (stored && node_.block) stored = keeper_.require(kChecksumsName, node_.block->checksums().descriptor());
    if (!stored) return stored;
  }
  auto engine = engine::Engine::create(node_.options, home_.catalog());
  if (!engine) return std::unexpected(engine.error());
  loop_->begin(std::move(*engine));
  return {};
}

// With the catalog that is open, and all that belongs to it.
Result<void> Host::go_on() {
  engine::CatalogMemory& catalog = home_.catalog();
  const auto fits = engine::Engine::check_succession(node_.options, catalog.shape(), home_.bytes());
  if (!fits) return fits;
  home_.adopt(*take(adopted_, kCatalogName));
  if (node_.block) {
    auto sums = take(adopted_, kChecksumsName);
    if (!sums)
      return fail(ErrorCode::kFailedPrecondition, "the checksums of the block tier did not come back with the catalog");
    if (auto taken = node_.block->adopt_checksums(std::move(*sums)); !taken) return taken;
  }
  std::vector<bool> were_lost;
  for (const engine::TierRecord& tier : catalog.tiers()) were_lost.push_back(tier.lost != 0);
  failures_.inherit(std::move(were_lost));
  std::vector<engine::Survivor> survivors;
  take_back_all(survivors);
  if (auto able = require_gpus(survivors); !able) return able;
  if (auto expected = block_.expect(true); !expected) return expected;
  auto engine = engine::Engine::restore(node_.options, catalog, survivors, std::exchange(lost_segments_, {}));
  if (!engine) return std::unexpected(engine.error());
  loop_->begin(std::move(*engine));
  const auto status = loop_->engine().status();
  drop_what_is_left(status);
  const engine::Restored restored = status.restored;
  spdlog::info("goes on for a former daemon: {} sessions, {} tensors; {} requests unanswered, {} transfers broken off",
               restored.sessions, restored.tensors, restored.unanswered_requests, restored.transfers);
  return {};
}

// Of shares that nobody has a part in any more, and of sessions that have ended.
void Host::drop_what_is_left(const engine::Status& status) {
  std::erase_if(spaces_, [&](const auto& entry) {
    if (std::ranges::find(status.sessions, entry.first, &engine::SessionStatus::session) != status.sessions.end())
      return false;
    for (const std::string& name : entry.second.kept) keeper_.drop(name);
    for (const auto& tier : node_.mapped)
      if (tier) tier->drop(entry.first);
    return true;
  });
  for (auto& [name, descriptor] : std::exchange(adopted_, {})) keeper_.drop(name);
}

// Spaces first: without its memory a session, or a share, is lost.
void Host::take_back_all(std::vector<engine::Survivor>& survivors) {
  const auto each = [&](auto use) {
    for (std::size_t record = 0; record < home_.catalog().shape().sessions_max; ++record)
      if (home_.catalog().session(record).lives()) use(home_.catalog().session(record));
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

void Host::keep_session(Session& session) {
  const auto keeps = [&](char what, int descriptor) {
    if (keeper_.keep(name_of(session.id, what), descriptor)) session.kept.push_back(name_of(session.id, what));
  };
  keeps(kRegion, session.region->descriptor());
  keeps(kProcess, session.process.get());
  if (session.maps) keeps(kDoorbell, session.doorbell.get());
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
  reactor_->spend(std::move(newcomer.connection_watch));
  reactor_->spend(std::move(newcomer.process_watch));
  auto node = newcomers_.extract(newcomer.key);
  node.mapped()->state = Session::State::kEnding;
  reactor_->spend(std::shared_ptr<void>(std::move(node.mapped())));
  auto watch = reactor_->watch(session->connection->descriptor(), POLLIN,
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
