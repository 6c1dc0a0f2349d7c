// SPDX-License-Identifier: Apache-2.0
#include "rehearsal/rehearsal.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "rehearsal/tiers.h"

namespace terrace::rehearsal {
namespace {

constexpr Duration kPlanningPerUse = std::chrono::microseconds(1);  // by the learner's thread
constexpr std::size_t kCreateMax = 4096;

}  // namespace

Rehearsal::Rehearsal(Options options)
    : options_(std::move(options)),
      oracle_(options_.workload),
      tiers_(tiers_of(options_.node, options_.workload, options_.jobs)),
      links_(options_.node) {}

Result<std::unique_ptr<Rehearsal>> Rehearsal::create(Options options) {
  std::unique_ptr<Rehearsal> made(new Rehearsal(std::move(options)));
  if (const auto started = made->start(); !started) return std::unexpected(started.error());
  return made;
}

Result<void> Rehearsal::start() {
  const bool told = options_.policy == PolicyKind::kDemandMin || options_.policy == PolicyKind::kOracle;
  if (told && options_.jobs > 1)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("the policy {} knows the future of one job alone; run one, or another policy",
                            name(options_.policy)));
  for (std::size_t job = 0; job < options_.jobs; ++job)
    jobs_.emplace_back(job, options_.workload.tensors.size() + 1, options_.seed + job);
  engine::Options options;
  options.tiers = tiers_;
  options.transfers_in_flight_max = 2;
  options.observe = options_.policy == PolicyKind::kNextUse;
  switch (options_.policy) {
    case PolicyKind::kNextUse:
      options.make_policy = engine::make_next_use_policy;
      for (Job& job : jobs_) job.learner.emplace(machine_of(options_.node, tiers_));
      break;
    case PolicyKind::kLru:
      break;
    case PolicyKind::kS3Fifo:
      options.make_policy = engine::make_s3_fifo_policy;
      break;
    case PolicyKind::kUnforeseen:
      options.make_policy = engine::make_scan_resistant_policy;
      break;
    case PolicyKind::kDemandMin:
      options.make_policy = [this] { return make_demand_min_policy(oracle_); };
      break;
    case PolicyKind::kOracle:
      options.make_policy = engine::make_next_use_policy;
      oracle_planner_.emplace(options_.workload, machine_of(options_.node, tiers_));
      break;
  }
  options.sessions_max = static_cast<std::uint32_t>(jobs_.size());
  const engine::CatalogShape shape{
      .sessions_max = options.sessions_max,
      .tensors_per_session_max = static_cast<std::uint32_t>(jobs_.front().trainer.table().size())};
  auto memory = engine::CatalogMemory::map(shape);
  if (!memory) return std::unexpected(memory.error());
  catalog_range_ = std::move(*memory);
  catalog_ = engine::CatalogMemory::format({catalog_range_.data(), catalog_range_.size()}, shape);
  auto engine = engine::Engine::create(std::move(options), *catalog_);
  if (!engine) return std::unexpected(engine.error());
  engine_ = std::move(*engine);
  for (Job& job : jobs_) {
    engine::OpenSession open;
    open.table = job.trainer.table();
    if (jobs_.size() > 1) open.guarantees = parts_of(tiers_, jobs_.size());
    const auto opened = ask(job, std::move(open));
    if (!opened) return std::unexpected(opened.error());
    job.session = std::get<engine::SessionOpened>(*opened).session;
  }
  for (Job& job : jobs_)
    if (const auto filled = fill(job); !filled) return filled;
  return {};
}

// The tensors, and the content that they have before the first step.
Result<void> Rehearsal::fill(Job& job) {
  const auto& tensors = options_.workload.tensors;
  for (std::size_t at = 0; at < tensors.size();) {
    engine::CreateTensors create;
    for (; at < tensors.size() && create.tensors.size() < kCreateMax; ++at) {
      create.tensors.emplace_back();
      create.tensors.back().name = fmt::format("{}", at);
      create.tensors.back().bytes = tensors[at].bytes;
    }
    const auto created = ask(job, std::move(create));
    if (!created) return std::unexpected(created.error());
    job.trainer.created(std::get<engine::Handles>(*created).tensors);
  }
  std::vector<workload::Run> writes;
  for (std::size_t at = 0; at < tensors.size(); ++at) {
    if (!tensors[at].home) continue;
    writes.emplace_back();
    const bool fits = align_up(tensors[at].bytes, kPageBytes) <= options_.node.host_bytes / options_.jobs;
    writes.back().name = fmt::format("that fills tensor {}", at);
    writes.back().place = fits ? workload::Place::kHost : workload::Place::kHbm;
    writes.back().write.push_back(static_cast<workload::TensorId>(at));
  }
  job.runs = writes;
  if (!writes.empty()) begin_run(job);
  while (!writes.empty()) {
    if (const auto advanced = advance_all(); !advanced) return advanced;
    if (job.phase == Job::Phase::kEnded) break;
    if (const auto waited = wait(); !waited) return waited;
  }
  job.phase = Job::Phase::kIdle;
  settle();
  return {};
}

RequestId Rehearsal::send(const Job& job, engine::Body body) {
  const RequestId id{next_request_++};
  engine_->submit(now_, engine::Request{id, job.session, kNever, std::move(body)});
  pump();
  return id;
}

Result<engine::ReplyBody> Rehearsal::ask(const Job& job, engine::Body body) {
  const RequestId id = send(job, std::move(body));
  while (!replies_.contains(id)) turn();
  return std::move(replies_.extract(id).mapped());
}

// Until nothing is under way.
void Rehearsal::settle() {
  while (links_.next() != kNever) turn();
}

Time Rehearsal::next_event() const {
  Time next = std::min({links_.next(), engine_->next_deadline(), log_due_});
  if (!plans_.empty()) next = std::min(next, plans_.begin()->first);
  for (const Job& job : jobs_)
    if (job.phase == Job::Phase::kComputing || job.phase == Job::Phase::kAsking) next = std::min(next, job.busy_until);
  return next;
}

// On to the next thing that happens.
void Rehearsal::turn() {
  const Time next = next_event();
  TERRACE_CHECK(next != kNever);  // else nobody will ever go on: the engine forgot a request
  now_ = std::max(now_, next);
  const bool planned = !plans_.empty() && plans_.begin()->first <= now_;
  if (log_due_ <= now_) drain_logs();
  if (planned) {
    const auto [session, plan] = plans_.extract(plans_.begin()).mapped();
    engine_->plan(now_, session, plan);
  }
  if (links_.next() <= now_)
    engine_->transfer_done(now_, {links_.take(), {}, {}});
  else if (engine_->next_deadline() <= now_)
    engine_->tick(now_);
  pump();
}

// Takes what the engine puts out, until there is nothing.
void Rehearsal::pump() {
  while (true) {
    engine::Output output = engine_->take_output();
    for (const mover::Transfer& transfer : output.transfers) {
      const bool in = transfer.link.kind == mover::LinkKind::kBlockRead;
      const TierId other = in ? transfer.to.tier : transfer.from.tier;
      const Traffic& moved = links_.start(now_, transfer, terrace::index(other) == 0);
      if (options_.spectator != nullptr) options_.spectator->moving(transfer, moved);
    }
    for (engine::Reply& reply : output.replies) {
      engine_->answered(reply.id);
      replies_.emplace(reply.id, std::move(reply.result));
    }
    for (const foresight::Observation& seen : output.observations) observe(seen);
    for (const mover::SegmentOrder& order : output.segment_orders) engine_->segment_done(now_, {order, {}});
    if (output.segment_orders.empty()) return;
  }
}

// As the daemon's own thread of learners does it.
void Rehearsal::observe(const foresight::Observation& seen) {
  Job& job = *std::ranges::find(jobs_, seen.session, &Job::session);
  if (seen.kind == foresight::Observation::Kind::kStep && jobs_.size() > 1) {
    job.learner->weigh(seen.weight);
    std::vector<foresight::Learner*> learners;
    for (Job& each : jobs_) learners.push_back(&*each.learner);
    foresight::share(machine_of(options_.node, tiers_), learners);
  }
  if (auto plan = job.learner->observe(seen)) plan_later(job, std::move(*plan));
}

void Rehearsal::plan_later(const Job& job, foresight::Plan plan) {
  const Time ready = now_ + kPlanningPerUse * static_cast<std::int64_t>(plan.uses.size());
  plans_.emplace(ready, std::pair(job.session, std::make_shared<const foresight::Plan>(std::move(plan))));
}

void Rehearsal::drain_logs() {
  log_due_ = kNever;
  for (Job& job : jobs_) {
    const auto log = job.trainer.take_log();
    if (log.empty()) continue;
    engine_->accessed(now_, job.session, log, log.size());
    pump();
  }
}

}  // namespace terrace::rehearsal
