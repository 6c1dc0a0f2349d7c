// SPDX-License-Identifier: Apache-2.0
#include "front/restore/restore.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "front/sessions/kept_names.h"
#include "front/survival/succession.h"

namespace terrace::front {
namespace {

constexpr const char* kChecksumsName = "checksums";

std::optional<Fd> take(service::Adopted& adopted, const std::string& name) {
  auto found = adopted.extract(name);
  if (found.empty()) return std::nullopt;
  return std::move(found.mapped());
}

}  // namespace

Result<void> Restore::make_engine() {
  const config::Limits& limits = around_.config.limits;
  const engine::CatalogShape shape{limits.sessions_max, limits.tensors_per_session_max};
  Result<void> opened;
  if (const auto left = adopted_.find(kCatalogName); left != adopted_.end())
    opened = around_.home.open(left->second, shape);
  // A catalog of nobody's binds nobody to the tiers that it speaks of, or to its shape.
  const bool of_nobody = around_.home.is_nobodys();
  if (!opened && !of_nobody) return opened;
  return !around_.home.is_open() || of_nobody ? begin_afresh(shape) : go_on();
}

Result<void> Restore::begin_afresh(const engine::CatalogShape& shape) {
  if (auto expected = around_.block.expect(false); !expected) return expected;
  around_.home.give_up();
  for (auto& [name, descriptor] : std::exchange(adopted_, {})) around_.keeper.drop(name);  // of no use
  if (auto made = around_.home.make(shape); !made) return made;
  if (around_.keeper.keeps()) {
    Result<void> stored = around_.keeper.require(kCatalogName, around_.home.memory().get());
    if (stored && around_.node.block)
      stored = around_.keeper.require(kChecksumsName, around_.node.block->checksums().descriptor());
    if (!stored) return stored;
  }
  auto engine = engine::Engine::create(around_.node.options, around_.home.catalog());
  if (!engine) return std::unexpected(engine.error());
  around_.loop.begin(std::move(*engine));
  return {};
}

// With the catalog that is open, and all that belongs to it.
Result<void> Restore::go_on() {
  engine::CatalogMemory& catalog = around_.home.catalog();
  const auto fits = engine::Engine::check_succession(around_.node.options, catalog.shape(), around_.home.bytes());
  if (!fits) return fits;
  around_.home.adopt(*take(adopted_, kCatalogName));
  if (around_.node.block) {
    auto sums = take(adopted_, kChecksumsName);
    if (!sums)
      return fail(ErrorCode::kFailedPrecondition, "the checksums of the block tier did not come back with the catalog");
    if (auto taken = around_.node.block->adopt_checksums(std::move(*sums)); !taken) return taken;
  }
  std::vector<bool> were_lost;
  for (const engine::TierRecord& tier : catalog.tiers()) were_lost.push_back(tier.lost != 0);
  around_.failures.inherit(std::move(were_lost));
  std::vector<engine::Survivor> survivors;
  take_back_all(survivors);
  if (auto able = require_gpus(survivors); !able) return able;
  if (auto expected = around_.block.expect(true); !expected) return expected;
  auto engine = engine::Engine::restore(around_.node.options, catalog, survivors, std::exchange(lost_segments_, {}));
  if (!engine) return std::unexpected(engine.error());
  around_.loop.begin(std::move(*engine));
  const auto status = around_.loop.engine().status();
  drop_what_is_left(status);
  const engine::Restored restored = status.restored;
  spdlog::info("goes on for a former daemon: {} sessions, {} tensors; {} requests unanswered, {} transfers broken off",
               restored.sessions, restored.tensors, restored.unanswered_requests, restored.transfers);
  return {};
}

// Of shares that nobody has a part in any more, and of sessions that have ended.
void Restore::drop_what_is_left(const engine::Status& status) {
  std::erase_if(around_.segments.spaces(), [&](const auto& entry) {
    if (std::ranges::find(status.sessions, entry.first, &engine::SessionStatus::session) != status.sessions.end())
      return false;
    for (const std::string& name : entry.second.kept) around_.keeper.drop(name);
    for (const auto& tier : around_.node.mapped)
      if (tier) tier->drop(entry.first);
    return true;
  });
  for (auto& [name, descriptor] : std::exchange(adopted_, {})) around_.keeper.drop(name);
}

// Spaces first: without its memory a session, or a share, is lost.
void Restore::take_back_all(std::vector<engine::Survivor>& survivors) {
  const auto each = [&](auto use) {
    for (std::size_t record = 0; record < around_.home.catalog().shape().sessions_max; ++record)
      if (around_.home.catalog().session(record).lives()) use(around_.home.catalog().session(record));
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
Result<Session*> Restore::take_back(const engine::SessionRecord& was) {
  const SessionId id{was.id};
  auto session = std::make_unique<Session>();
  session->key = around_.sessions.next_key();
  session->id = id;
  session->state = Session::State::kOpen;
  session->peer.tenant = {engine::tenant_socket(around_.node.options, was).value(), was.uid};
  session->peer.pid = was.pid;
  session->token = was.token;
  session->space = SessionId{was.share != 0 ? was.share : was.id};
  session->maps = was.maps_segments != 0;
  session->writes = was.writes != 0;
  session->welcomed = true;
  Fd region_memory;
  const auto lost = [](const std::string& name) { return fail(ErrorCode::kDataLoss, name + " did not come back"); };
  for (const auto& [what, into] : {std::pair{kKeptRegion, &region_memory}, std::pair{kKeptProcess, &session->process},
                                   std::pair{kKeptDoorbell, &session->doorbell}}) {
    if (into == &session->doorbell && !session->maps) continue;
    auto descriptor = take(adopted_, kept_name(id, what));
    if (!descriptor) return lost(kept_name(id, what));
    session->kept.push_back(kept_name(id, what));
    *into = std::move(*descriptor);
  }
  auto region = SessionRegion::adopt(std::move(region_memory), around_.config.limits.tensors_per_session_max);
  if (!region) return std::unexpected(region.error());
  session->region.emplace(std::move(*region));
  return &around_.sessions.add(std::move(session));
}

Result<void> Restore::watch_sessions() {
  for (const auto& [id, session] : around_.sessions.known()) {
    around_.sessions.register_token(*session);
    if (auto watched = around_.sessions.watch_end(*session); !watched) return watched;
    if (!session->maps) continue;
    if (session->region->closed()) {
      around_.sessions.end(*session, {ErrorCode::kCancelled, "closed by the client, while there was no daemon", 0});
      continue;
    }
    if (auto watched = around_.rings.watch_doorbell(*session); !watched) return watched;
  }
  return {};
}

}  // namespace terrace::front
