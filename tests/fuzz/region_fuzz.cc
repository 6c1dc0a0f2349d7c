// SPDX-License-Identifier: Apache-2.0
// A session region in which a trainer writes what it likes, whenever it likes: rings, table, logs and arena. What the
// daemon reads of it, and the engine under it, end that session at most; the lease of another session's tensor stands.
#include <sys/mman.h>

#include <array>
#include <cstring>
#include <deque>
#include <vector>

#include "base/bytes.h"
#include "front/sessions/ring_request.h"
#include "front/sessions/session_region.h"
#include "fuzz/engine_driver.h"
#include "fuzz/input.h"

namespace terrace::fuzz {
namespace {

constexpr std::uint32_t kSlots = 16;
constexpr int kActsMax = 200;
constexpr std::uint64_t kFirstOfRing = 1'000;

engine::Options three_tiers() {
  engine::Options options;
  options.tiers = {
      {.name = "device:0", .kind = tier::Kind::kDevice, .capacity_bytes = 4 * kMiB, .segment_bytes = 2 * kMiB},
      {.name = "memory", .kind = tier::Kind::kMemory, .capacity_bytes = 4 * kMiB, .segment_bytes = 2 * kMiB},
      {.name = "block", .kind = tier::Kind::kBlock, .capacity_bytes = 16 * kMiB}};
  options.requests_waiting_max = 64;
  return options;
}

// A trainer that keeps to the rules, with a tensor that it leases for writing.
class Honest {
 public:
  explicit Honest(EngineDriver& driver) : driver_(driver) {
    engine::OpenSession open;
    open.table = engine::LeaseTable(slots_);
    open.guarantees = {{shm::kPlaceHost, 2 * kMiB}, {shm::kPlaceDevice0, 2 * kMiB}};
    id_ = std::get<engine::SessionOpened>(*driver.ask({}, std::move(open))).session;
    engine::TensorSpec spec;
    spec.name = "honest";
    spec.bytes = 64 * kKiB;
    const auto made = driver.ask(id_, engine::CreateTensors{{spec}});
    tensor_ = std::get<engine::Handles>(*made).tensors.at(0);
    TERRACE_CHECK(driver.ask(id_, engine::Acquire{shm::kPlaceHost, shm::Mode::kWrite, {tensor_}}).has_value());
    offset_ = slots_[0].offset;
  }
  // Nobody else's doing has moved it, and it can be had wherever it is wanted.
  void check() {
    const shm::Word word = shm::Word::unpack(slots_[0].word.load());
    TERRACE_CHECK(word.state == shm::State::kResident && word.writers == 1 && slots_[0].offset == offset_);
    TERRACE_CHECK(driver_.ask(id_, engine::Release{shm::Mode::kWrite, {tensor_}}).has_value());
    for (const std::uint32_t place : {shm::kPlaceDevice0, shm::kPlaceHost}) {
      TERRACE_CHECK(driver_.ask(id_, engine::Acquire{place, shm::Mode::kRead, {tensor_}}).has_value());
      TERRACE_CHECK(driver_.ask(id_, engine::Release{shm::Mode::kRead, {tensor_}}).has_value());
    }
  }

 private:
  EngineDriver& driver_;
  std::array<shm::TableSlot, 2> slots_{};
  SessionId id_{};
  Handle tensor_;
  std::uint64_t offset_ = 0;
};

// The daemon's side of the other one, as front::Host plays it; and its trainer's scribbles.
class Hostile {
 public:
  Hostile(EngineDriver& driver, engine::Engine& engine)
      : driver_(driver), engine_(engine), region_(*front::SessionRegion::create(kSlots)) {
    auto mapped = AddressRange::map(region_.descriptor(), region_.bytes(), PROT_READ | PROT_WRITE);
    TERRACE_CHECK(mapped.has_value());
    own_ = std::move(*mapped);
    shm::RegionHeader layout{};
    shm::lay_out(layout, kSlots);
    view_ = shm::view_region(own_.data(), layout);
    engine::OpenSession open;
    open.table = region_.table();
    open.guarantees = {{shm::kPlaceHost, 0}, {shm::kPlaceDevice0, 0}};
    open.maps_segments = true;
    id_ = std::get<engine::SessionOpened>(*driver.ask({}, std::move(open))).session;
  }

  void act(Input& input) {
    switch (input.below(12)) {
      case 0:
      case 1:
        return submit(input);
      case 2:
        return poke(index_words()[input.below(6)], static_cast<std::uint32_t>(input.number()));
      case 3:
        return poke_bytes(input, reinterpret_cast<std::byte*>(view_.submissions),
                          shm::kRingEntries * sizeof(shm::Submission));
      case 4:
        return view_.table[input.below(kSlots)].word.store(word(input));
      case 5:
        return poke_bytes(input, reinterpret_cast<std::byte*>(view_.table.data()), view_.table.size_bytes());
      case 6:
        view_.log_index(static_cast<std::uint32_t>(input.below(shm::kLogCount))).tail.store(input.number());
        return poke_bytes(input, view_.logs, shm::kLogCount * shm::kLogBytes);
      case 7:
        return poke_bytes(input, view_.arena.data(), 64 * kKiB);
      case 8:
        return poke_bytes(input, own_.data(), sizeof(shm::RegionHeader));
      case 9:
        driver_.hold_back(input.below(2) == 1);
        return driver_.drain();
      case 10:
        if (input.below(4) == 0) return driver_.pass(Duration(input.byte() * 1'000));
        driver_.do_one(input.below(8) == 0 ? fail(ErrorCode::kInternal, "injected", 5) : Result<void>{});
        return driver_.drain();
      default:
        return ring();
    }
  }
  bool ended() const { return ended_; }
  void end() {
    if (std::exchange(ended_, true)) return;
    engine_.session_died(driver_.now(), id_);
    driver_.drain();
  }
  // Host::doorbell_rang().
  void ring() {
    std::vector<engine::Access> accesses;
    const std::uint64_t leases = region_.drain_logs({}, accesses);
    if (leases != 0) engine_.accessed(driver_.now(), id_, accesses, leases);
    for (std::uint32_t i = 0; i < shm::kRingEntries && !ended_; ++i) {
      const auto submission = region_.next_submission();
      if (!submission) return end();
      if (!submission->has_value()) break;
      take(**submission);
    }
    if (ended_) return;
    engine_.lease_ended(driver_.now(), id_);
    driver_.drain();
    answer();
  }

 private:
  std::array<std::atomic<std::uint32_t>*, 7> index_words() {
    return {&view_.submission_index->head,    &view_.submission_index->tail, &view_.submission_index->polled,
            &view_.submission_index->waiters, &view_.completion_index->head, &view_.completion_index->tail,
            &view_.completion_index->waiters};
  }
  static void poke(std::atomic<std::uint32_t>* word, std::uint32_t value) { word->store(value); }
  static void poke_bytes(Input& input, std::byte* base, std::size_t size) {
    const std::size_t offset = input.take<std::uint32_t>() % size;
    const auto bytes = input.span(std::min<std::size_t>(1 + input.below(64), size - offset));
    std::ranges::copy(bytes, base + offset);
  }
  static std::uint64_t word(Input& input) {
    const std::uint8_t flags = input.byte();
    return shm::Word{.state = static_cast<shm::State>(flags % 8),
                     .dirty = (flags & 8) != 0,
                     .wanted = (flags & 16) != 0,
                     .lent = (flags & 32) != 0,
                     .turn = (flags & 64) != 0,
                     .readers = input.byte(),
                     .writers = input.byte(),
                     .incarnation = input.byte()}
        .packed();
  }

  // A request as the library would make it, but for one thing or another.
  void submit(Input& input) {
    shm::Submission submission{.id = ++last_id_,
                               .operation = static_cast<shm::Operation>(input.below(12)),
                               .mode = static_cast<std::uint32_t>(input.below(4)),
                               .place = static_cast<std::uint32_t>(input.below(3)),
                               .count = static_cast<std::uint32_t>(input.below(5)),
                               .block_offset = 4096 * input.below(16),
                               .block_bytes = 4096,
                               .timeout_ns = input.byte() * std::uint64_t{100},
                               .value = input.byte(),
                               .flags = input.below(2)};
    std::byte* const block = view_.arena.data() + submission.block_offset;
    for (std::uint32_t i = 0; i < submission.count; ++i) {
      if (submission.operation == shm::Operation::kCreate) {
        shm::CreateRecord record{};
        record.bytes = input.below(4) == 0 ? input.number() : 1 + input.take<std::uint32_t>() % (2 * kMiB);
        record.dtype = static_cast<std::uint32_t>(1 + input.below(18));
        record.rank = static_cast<std::uint32_t>(input.below(10));
        record.name = {static_cast<char>('a' + input.below(26)), static_cast<char>(input.byte())};
        std::memcpy(block + i * sizeof record, &record, sizeof record);
      } else {
        const std::uint64_t handle = Handle{Slot{static_cast<std::uint32_t>(input.below(kSlots + 2))},
                                            static_cast<std::uint32_t>(1 + input.below(3))}
                                         .packed();
        std::memcpy(block + i * sizeof handle, &handle, sizeof handle);
      }
    }
    if (submission.operation == shm::Operation::kAcquire) {
      // Mixed, each mode in turn; or none that there is.
      std::byte* const modes = block + submission.count * sizeof(std::uint64_t);
      for (std::uint32_t i = 0; i < submission.count; ++i)
        modes[i] = static_cast<std::byte>(submission.mode < 3 ? (submission.mode + i) % 3 : submission.mode);
    }
    if (input.below(8) == 0) {
      auto* const field = reinterpret_cast<std::byte*>(&submission) + 8 * input.below(8);
      const std::uint64_t number = input.number();
      std::memcpy(field, &number, sizeof number);
    }
    const std::uint32_t tail = view_.submission_index->tail.load();
    view_.submissions[tail % shm::kRingEntries] = submission;
    view_.submission_index->tail.store(tail + 1);
  }

  // Host::take_submission().
  void take(const shm::Submission& submission) {
    if (unanswered_ >= shm::kRingEntries) return end();
    ++unanswered_;
    const auto bytes = front::record_bytes(submission);
    if (!bytes) return complete(submission, std::unexpected(bytes.error()));
    const auto block = region_.read_block(submission, *bytes);
    if (!block) {
      shm::Submission nowhere = submission;
      nowhere.block_bytes = nowhere.block_offset = 0;
      return complete(nowhere, std::unexpected(block.error()));
    }
    auto body = front::to_request(submission, *block);
    if (!body) return complete(submission, std::unexpected(body.error()));
    asked_.push_back(submission);
    driver_.submit(RequestId{kFirstOfRing + asked_.size() - 1}, id_, std::move(*body),
                   Duration(std::min<std::uint64_t>(submission.timeout_ns, 1'000'000)));
    answer();
  }
  void answer() {
    auto& replies = driver_.replies();
    for (auto reply = replies.begin(); reply != replies.end();) {
      const std::uint64_t index = static_cast<std::uint64_t>(reply->first) - kFirstOfRing;
      if (index >= asked_.size()) {
        ++reply;
        continue;
      }
      if (!ended_) complete(asked_[index], reply->second);
      reply = replies.erase(reply);
    }
  }
  void complete(const shm::Submission& submission, const Result<engine::ReplyBody>& result) {
    --unanswered_;
    shm::Completion completion{};
    completion.id = submission.id;
    if (result) {
      region_.write_block(submission, front::result_bytes(*result));
    } else {
      TERRACE_CHECK(!result.error().message.empty());
      completion.code = static_cast<std::uint32_t>(result.error().code);
      completion.message_bytes = region_.write_block(submission, std::as_bytes(std::span(result.error().message)));
    }
    if (!region_.complete(completion)) end();
  }

  EngineDriver& driver_;
  engine::Engine& engine_;
  front::SessionRegion region_;
  AddressRange own_;
  shm::RegionView view_;
  SessionId id_{};
  bool ended_ = false;
  std::uint32_t unanswered_ = 0;
  std::uint64_t last_id_ = 0;
  std::deque<shm::Submission> asked_;
};

void run(Input input) {
  const engine::Options options = three_tiers();
  constexpr engine::CatalogShape kShape{.sessions_max = 256, .tensors_per_session_max = kSlots};
  const auto memory = engine::CatalogMemory::map(kShape);
  TERRACE_CHECK(memory.has_value());
  auto catalog = engine::CatalogMemory::format({memory->data(), memory->size()}, kShape);
  auto engine = engine::Engine::create(options, catalog);
  TERRACE_CHECK(engine.has_value());
  EngineDriver driver(**engine, options);
  Honest honest(driver);
  Hostile hostile(driver, **engine);
  driver.check(false);
  for (int i = 0; i < kActsMax && !input.empty() && !hostile.ended(); ++i) hostile.act(input);
  hostile.ring();
  driver.hold_back(false);
  driver.drain();
  hostile.end();
  driver.check(true);
  honest.check();
  (*engine)->check_invariants();
}

}  // namespace
}  // namespace terrace::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  terrace::fuzz::run({data, size});
  return 0;
}
