// SPDX-License-Identifier: Apache-2.0
// The engine alone: requests of every kind against tiers that move nothing, on one thread.
#include <fmt/format.h>

#include <random>

#include "base/bytes.h"
#include "base/check.h"
#include "base/mapping.h"
#include "bench/counters.h"
#include "bench/suite.h"
#include "engine/engine.h"

namespace terrace::bench {
namespace {

constexpr std::uint32_t kSessions = 4;
constexpr std::uint32_t kTensors = 1024;  // of each session, 64 KiB each: two thirds fit the memory tier
constexpr std::uint64_t kTensorBytes = 64 * kKiB;
constexpr std::uint32_t kChanging = 64;  // of them are deleted and created again
constexpr std::uint64_t kSeed = 7;

// A session's table in plain memory.
struct Trainer {
  explicit Trainer(std::size_t count) : slots(count), table(slots) {}
  std::vector<shm::TableSlot> slots;
  engine::LeaseTable table;
  SessionId id{};
  std::vector<Handle> tensors;
};

// The engine with what a daemon has around it: a catalog, and tiers that do at once whatever they are told.
class Node {
 public:
  Node()
      : catalog_memory_(*engine::CatalogMemory::map(kShape)), catalog_(engine::CatalogMemory::format(bytes(), kShape)) {
    engine::Options options;
    options.sessions_max = kShape.sessions_max;
    options.make_policy = engine::make_next_use_policy;  // as a daemon has it by default; plans come from elsewhere
    options.observe = true;
    options.tiers = {tier("device:0", tier::Kind::kDevice, 32 * kMiB), tier("memory", tier::Kind::kMemory, 128 * kMiB),
                     tier("block", tier::Kind::kBlock, 1 * kGiB)};
    engine_ = std::move(*engine::Engine::create(std::move(options), catalog_));
    for (std::uint32_t i = 0; i < kSessions; ++i) open();
  }

  // A request of a kind that is drawn: the mix is of what trainers send when they miss. Leases that are granted are
  // given back in the table, as clients do, which is no request.
  void step() {
    Trainer& trainer = *trainers_[random_() % kSessions];
    const std::uint32_t place = random_() % 4 == 0 ? shm::kPlaceDevice0 : shm::kPlaceHost;
    const std::size_t which = kChanging + random_() % (kTensors - kChanging);
    const Handle one = trainer.tensors[which];
    const std::uint64_t kind = random_() % 100;
    if (kind < 60) {
      const auto mode = static_cast<shm::Mode>(1 + random_() % 2);
      if (ask(trainer.id, engine::Acquire{place, kind < 40 ? shm::Mode::kRead : mode, {one}})) give_back(trainer, one);
    } else if (kind < 75) {
      (void)ask(trainer.id, engine::Prefetch{place, {one}});
    } else if (kind < 85) {
      (void)ask(trainer.id, engine::Move{kind < 80 ? shm::kPlaceBlock : place, {one}});
    } else if (kind < 92) {
      (void)ask(trainer.id, engine::Evict{{one}});
    } else if (kind < 96) {
      (void)ask(trainer.id, engine::MarkStep{});
    } else {
      replace(trainer, random_() % kChanging);
    }
  }

  std::uint64_t requests() const { return requests_; }
  std::uint64_t failures() const { return failures_; }
  std::uint64_t transfers() const { return transfers_; }
  void check_laws() const { engine_->check_invariants(); }

 private:
  static constexpr engine::CatalogShape kShape{.sessions_max = 16, .tensors_per_session_max = 4096};

  std::span<std::byte> bytes() { return {catalog_memory_.data(), catalog_memory_.size()}; }

  static engine::TierOptions tier(std::string name, tier::Kind kind, std::uint64_t capacity) {
    engine::TierOptions options;
    options.name = std::move(name);
    options.kind = kind;
    options.capacity_bytes = capacity;
    options.segment_bytes = kind == tier::Kind::kBlock ? 0 : 2 * kMiB;
    return options;
  }

  static engine::TensorSpec spec(std::size_t index, std::uint64_t life) {
    engine::TensorSpec spec;
    spec.name = fmt::format("layers.{}.weight.{}", index, life);
    spec.bytes = kTensorBytes;
    return spec;
  }

  void open() {
    auto trainer = std::make_unique<Trainer>(kShape.tensors_per_session_max);
    engine::OpenSession opening;
    opening.table = trainer->table;
    opening.local_world_size = kSessions;
    const auto opened = ask(SessionId{}, opening);
    TERRACE_CHECK(opened.has_value());
    trainer->id = std::get<engine::SessionOpened>(*opened).session;
    engine::CreateTensors create;
    for (std::size_t i = 0; i < kTensors; ++i) create.tensors.push_back(spec(i, 0));
    const auto created = ask(trainer->id, create);
    TERRACE_CHECK(created.has_value());
    trainer->tensors = std::get<engine::Handles>(*created).tensors;
    trainers_.push_back(std::move(trainer));
  }

  void replace(Trainer& trainer, std::size_t index) {
    (void)ask(trainer.id, engine::DeleteTensors{.tensors = {trainer.tensors[index]}});
    const auto created = ask(trainer.id, engine::CreateTensors{{spec(index, ++lives_)}});
    TERRACE_CHECK(created.has_value());
    trainer.tensors[index] = std::get<engine::Handles>(*created).tensors[0];
  }

  void give_back(Trainer& trainer, Handle handle) {
    shm::AtomicWord& word = trainer.table.word(handle.slot);
    const shm::Word held = shm::Word::unpack(word.load(std::memory_order_acquire));
    const shm::Mode mode = held.writers != 0 ? shm::Mode::kWrite : shm::Mode::kRead;
    const shm::Step step = shm::release(word, handle.incarnation, mode);
    TERRACE_CHECK(step.outcome == shm::Outcome::kDone);
    if (step.word.wanted && !step.word.leased()) {
      engine_->lease_ended(now_, trainer.id);
      carry_out();
    }
  }

  // Sends it and carries out what the engine asks for, until it is answered: here everybody gets what they ask for, but
  // reading what was never written is an error.
  Result<engine::ReplyBody> ask(SessionId session, engine::Body body) {
    ++requests_;
    now_ = now_ + Duration(1000);
    engine_->submit(
        now_, {.id = RequestId{++last_request_}, .session = session, .deadline = kNever, .body = std::move(body)});
    carry_out();
    TERRACE_CHECK(answer_.has_value());
    Result<engine::ReplyBody> answer = std::move(*answer_);
    answer_.reset();
    if (!answer && answer.error().code != ErrorCode::kFailedPrecondition) ++failures_;
    return answer;
  }

  void carry_out() {
    for (bool more = true; more;) {
      engine_->take_output(output_);
      for (engine::Reply& reply : output_.replies) {
        engine_->answered(reply.id);
        TERRACE_CHECK(!answer_.has_value());
        answer_ = std::move(reply.result);
      }
      for (const mover::SegmentOrder& order : output_.segment_orders) engine_->segment_done(now_, {order, {}});
      for (const mover::Transfer& transfer : output_.transfers) engine_->transfer_done(now_, {transfer.id, {}, {}});
      transfers_ += output_.transfers.size();
      more = !output_.transfers.empty() || !output_.segment_orders.empty();
    }
  }

  AddressRange catalog_memory_;
  engine::CatalogMemory catalog_;
  std::unique_ptr<engine::Engine> engine_;
  std::vector<std::unique_ptr<Trainer>> trainers_;
  std::mt19937_64 random_{kSeed};
  std::optional<Result<engine::ReplyBody>> answer_;
  engine::Output output_;
  std::uint64_t last_request_ = 0;
  Time now_{1};
  std::uint64_t lives_ = 0;
  std::uint64_t requests_ = 0;
  std::uint64_t failures_ = 0;
  std::uint64_t transfers_ = 0;
};

Result<void> run(Bench& bench) {
  Node node;
  const auto steps = bench.either<std::uint64_t>(400'000, 60'000);
  for (std::uint64_t i = 0; i < steps; ++i) node.step();  // every tensor has been written, and the tiers are full
  std::vector<double> rates;
  std::uint64_t requests = 0;
  const std::uint64_t transfers_before = node.transfers();
  const Instructions instructions;
  for (int round = 0; round < bench.rounds(); ++round) {
    const std::uint64_t before = node.requests();
    const Counters counted = counters_of_this_thread();
    for (std::uint64_t i = 0; i < steps; ++i) node.step();
    const auto done = static_cast<double>(node.requests() - before);
    rates.push_back(done * 1e9 / static_cast<double>((counters_of_this_thread() - counted).cpu_ns));
    requests += node.requests() - before;
    bench.say(fmt::format("engine: round {} of {}", round + 1, bench.rounds()));
  }
  node.check_laws();
  if (node.failures() != 0) return fail(ErrorCode::kInternal, fmt::format("{} requests failed", node.failures()));
  Row row{.bench = "engine.requests",
          .path = "the engine alone, mixed requests, a second of one core's time",
          .value = median(rates),
          .unit = "requests/s",
          .ratio_of = RatioOf::kValue,
          .bar = 1e6,
          .better = Better::kHigher};
  const auto per_request = [&](std::uint64_t sum) { return static_cast<double>(sum) / static_cast<double>(requests); };
  row.counts.push_back({.name = "ns of CPU a request", .value = 1e9 / row.value});
  row.counts.push_back({.name = "transfers a request", .value = per_request(node.transfers() - transfers_before)});
  if (const auto count = instructions.count())
    row.counts.push_back({.name = "instructions a request", .value = per_request(*count)});
  bench.add(std::move(row));
  return {};
}

}  // namespace

Suite engine_suite() {
  return {.name = "engine",
          .what = "the engine alone, requests a second",
          .rows = {"engine.requests"},
          .lacks = nullptr,
          .run = run};
}

}  // namespace terrace::bench
