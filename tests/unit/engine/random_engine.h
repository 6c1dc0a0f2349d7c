// SPDX-License-Identifier: Apache-2.0
// Random operations on an engine, beside a model that knows what every answer may be: for the tests of the laws, with
// and without the engine's process ending in between.
#pragma once

#include <algorithm>
#include <iostream>
#include <random>
#include <utility>

#include "unit/engine/harness.h"

namespace terrace::engine {

struct Lease {
  Handle handle;
  shm::Mode mode{};
};

struct ModelTensor {
  Handle handle;
  std::string name;
  std::uint64_t bytes = 0;
  std::uint64_t number = 0;  // the engine's: they are given out in the order of the replies
  bool written = false;
  bool may_be_lost = false;
  std::uint64_t value = 0;
};

struct Actor {
  Harness::Client* client = nullptr;
  std::unique_ptr<Harness::Client> opening;
  std::vector<PlaceOffer> offers;
  std::vector<ModelTensor> tensors;
  std::vector<Lease> leases;
  std::vector<Handle> pinned;
  bool ending = false;
};

struct Asked {
  std::size_t actor = 0;
  Body body;
};

class RandomEngine {
 public:
  RandomEngine(unsigned seed, Options options, bool with_catalog = false)
      : random_(seed), harness_(options, with_catalog), options_(std::move(options)) {
    actors_.resize(4);
    for (const TierOptions& tier : options_.tiers) {
      if (tier.kind == tier::Kind::kMemory) places_.push_back(kHost);
      if (tier.kind == tier::Kind::kDevice) places_.push_back(kDevice + devices_++);
    }
    has_block_ = options_.tiers.back().kind == tier::Kind::kBlock;
  }

  void run(int steps) {
    for (int step = 0; step < steps && !::testing::Test::HasFailure(); ++step) {
      act();
      take_replies();
      if (step % 2000 == 1999) calm();
    }
    if (!::testing::Test::HasFailure()) finish();
  }
  std::uint64_t digest() const { return digest_; }

 protected:
  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }
  bool chance(std::uint64_t one_in) { return below(one_in) == 0; }
  std::uint32_t place() { return places_[below(places_.size())]; }
  Time deadline() {
    if (chance(3)) return kNever;
    return harness_.now + Duration(below(30));
  }

  void send(std::size_t actor, Body body, Time at) {
    const SessionId id = actors_[actor].client != nullptr ? actors_[actor].client->id : SessionId{};
    const RequestId next{last_request_ + 1};
    asked_.emplace(next, Asked{actor, body});
    ++last_request_;  // also if the process ends meanwhile
    const RequestId got = harness_.send(id, std::move(body), at);
    ASSERT_EQ(got, next);
  }

  std::vector<Handle> some_tensors(Actor& actor, std::size_t most = 4) {
    std::vector<Handle> set;
    const std::size_t count = 1 + below(most);
    for (std::size_t i = 0; i < count && !actor.tensors.empty(); ++i) {
      const Handle handle = actor.tensors[below(actor.tensors.size())].handle;
      if (std::find(set.begin(), set.end(), handle) == set.end()) set.push_back(handle);
    }
    return set;
  }

  void act() {
    const std::size_t index = below(actors_.size());
    Actor& actor = actors_[index];
    const std::uint64_t dice = below(100);
    if (dice < 35) return complete_something();
    if (dice < 40) return harness_.advance(harness_.now + Duration(below(10)));
    if (actor.ending) return;
    if (actor.client == nullptr) return open(index);
    if (dice < 50) return fast_lease(actor);
    if (dice < 66) return release(index);
    if (dice < 70) return create(index);
    if (dice < 85) {
      const auto mode = static_cast<shm::Mode>(below(3));
      return send(index, Acquire{place(), mode, some_tensors(actor)}, deadline());
    }
    if (dice < 89) {
      const std::uint32_t to = has_block_ && chance(3) ? shm::kPlaceBlock : place();
      return send(index, Move{to, some_tensors(actor)}, deadline());
    }
    if (dice < 92) return send(index, Prefetch{place(), some_tensors(actor)}, kNever);
    if (dice < 94) return send(index, Evict{some_tensors(actor)}, kNever);
    if (dice < 95) return send(index, DontNeed{some_tensors(actor, 1)}, kNever);
    if (dice < 96) return send(index, DeleteTensors{some_tensors(actor, 1)}, kNever);
    if (dice < 97) return send(index, Pin{place(), some_tensors(actor, 1)}, deadline());
    if (dice < 98) return unpin(index);
    if (dice < 99) return send(index, ListTensors{}, kNever);
    if (chance(12)) return end(index);
    send(index, MarkStep{}, kNever);
  }

  void open(std::size_t index) {
    Actor& actor = actors_[index];
    if (actor.opening != nullptr || !chance(4)) return;
    OpenSession open;
    actor.opening = std::make_unique<Harness::Client>(64);
    open.table = actor.opening->table;
    open.local_world_size = static_cast<std::uint32_t>(1 + below(4));
    open.maps_segments = harness_.catalog.has_value();
    if (chance(2)) open.guarantees.push_back({place(), below(3) * kSegment});
    send(index, open, deadline());
  }

  void end(std::size_t index) {
    Actor& actor = actors_[index];
    actor.ending = true;
    actor.leases.clear();
    if (chance(2)) return send(index, CloseSession{}, kNever);
    harness_.engine->session_died(harness_.now, actor.client->id);
    harness_.drain();
    died_.push_back(index);
  }

  void create(std::size_t index) {
    CreateTensors body;
    const std::size_t count = 1 + below(3);
    if (actors_[index].tensors.size() > 40) return;
    for (std::size_t i = 0; i < count; ++i)
      body.tensors.push_back(spec_of("t" + std::to_string(++named_), 1 + below(kMiB)));
    if (chance(20)) body.tensors[0].bytes = kSegment * 2;
    send(index, std::move(body), deadline());
  }

  void unpin(std::size_t index) {
    Actor& actor = actors_[index];
    if (actor.pinned.empty()) return;
    const Handle handle = actor.pinned.back();
    actor.pinned.pop_back();
    send(index, Unpin{{handle}}, kNever);
  }

  // As the client library: in the table, if the copy is published at the place.
  void fast_lease(Actor& actor) {
    if (actor.tensors.empty()) return;
    ModelTensor& tensor = actor.tensors[below(actor.tensors.size())];
    const auto mode = static_cast<shm::Mode>(below(3));
    LeaseTable table = actor.client->table;
    const shm::Step step = shm::acquire(table.word(tensor.handle.slot), tensor.handle.incarnation, mode);
    if (step.outcome != shm::Outcome::kDone) return;
    leased(actor, tensor, mode, true);
    const Access access{tensor.handle.slot, mode};
    harness_.engine->accessed(harness_.now, actor.client->id, {&access, 1}, 1);
  }

  void leased(Actor& actor, ModelTensor& tensor, shm::Mode mode, bool fast) {
    actor.leases.push_back({tensor.handle, mode});
    const std::uint64_t seen = harness_.look(*actor.client, tensor.handle);
    if (mode != shm::Mode::kOverwrite) {
      EXPECT_EQ(seen, tensor.written ? tensor.value : 0) << tensor.name << (fast ? " in the table" : " by the engine");
      if (mode == shm::Mode::kRead) {
        EXPECT_TRUE(tensor.written) << tensor.name;
      }
    }
    if (mode == shm::Mode::kRead) return;
    fill(actor, tensor);
    if (mode == shm::Mode::kOverwrite) tensor.may_be_lost = false;
  }
  void fill(Actor& actor, ModelTensor& tensor) {
    tensor.written = true;
    tensor.value = ++values_ << 20;
    harness_.fill(*actor.client, tensor.handle, tensor.value);
  }

  void release(std::size_t index) {
    Actor& actor = actors_[index];
    if (actor.leases.empty()) return;
    const std::size_t at = below(actor.leases.size());
    const Lease lease = actor.leases[at];
    actor.leases.erase(actor.leases.begin() + static_cast<std::ptrdiff_t>(at));
    ModelTensor* tensor = find(actor, lease.handle);
    if (lease.mode != shm::Mode::kRead && tensor != nullptr) fill(actor, *tensor);
    // A trainer that outlives the daemon releases in the word: a release that is asked for could be done twice.
    const bool asks = !harness_.catalog && chance(3);
    const bool torn = asks && lease.mode == shm::Mode::kOverwrite && chance(12);
    if (torn && tensor != nullptr && !holds(actor, lease.handle)) tensor->written = tensor->may_be_lost = false;
    if (asks)
      send(index, Release{lease.mode, {lease.handle}, torn}, kNever);
    else
      harness_.release(*actor.client, lease.handle, lease.mode);
  }

  static bool holds(const Actor& actor, Handle handle) {
    return std::any_of(actor.leases.begin(), actor.leases.end(), [&](const Lease& l) { return l.handle == handle; });
  }

  ModelTensor* find(Actor& actor, Handle handle) {
    for (ModelTensor& tensor : actor.tensors)
      if (tensor.handle == handle) return &tensor;
    return nullptr;
  }

  void complete_something() {
    if (!harness_.orders.empty() && (harness_.transfers.empty() || chance(4))) {
      std::size_t at = below(harness_.orders.size());
      for (std::size_t i = 0; i < at; ++i)  // those of one space are carried out in order
        if (harness_.orders[i].session == harness_.orders[at].session &&
            harness_.orders[i].tier == harness_.orders[at].tier)
          at = i;
      const bool add = harness_.orders[at].kind == mover::SegmentOrder::Kind::kAdd;
      if (faults_ && add && chance(40))
        return harness_.complete_order(at, Error{ErrorCode::kResourceExhausted, "no memory", 12});
      return harness_.complete_order(at);
    }
    if (harness_.transfers.empty()) return;
    const std::size_t at = below(harness_.transfers.size());
    if (!faults_ || !chance(150)) return harness_.complete_transfer(at);
    const mover::Transfer& transfer = harness_.transfers[at];
    const bool reads = transfer.link.kind == mover::LinkKind::kBlockRead;
    const bool slides = transfer.link.kind == mover::LinkKind::kMemcpy && !transfer.zero_fill;
    const bool writes = transfer.link.kind == mover::LinkKind::kBlockWrite;
    for (Actor& actor : actors_)
      for (ModelTensor& tensor : actor.tensors)
        if (tensor.number == transfer.tensor && (reads || slides)) tensor.may_be_lost = true;
    const TierId failed = writes ? transfer.to.tier : transfer.from.tier;
    const ErrorCode code = reads && chance(2) ? ErrorCode::kDataLoss : ErrorCode::kInternal;
    harness_.complete_transfer(at, Error{code, "injected", 5}, failed);
  }

  void take_replies() {
    for (const RequestId id : std::exchange(harness_.answered_in_order, {})) {
      if (!harness_.answered(id)) continue;  // looked at where it was asked
      const Result<ReplyBody> result = harness_.reply(id);
      const auto found = asked_.find(id);
      ASSERT_NE(found, asked_.end());
      const Asked asked = std::move(found->second);
      asked_.erase(found);
      digest_ = digest_ * 31 + static_cast<std::uint64_t>(id) +
                (result ? 0 : static_cast<std::uint64_t>(result.error().code) * 1000);
      Actor& actor = actors_[asked.actor];
      std::visit([&](const auto& body) { replied(asked.actor, actor, body, result); }, asked.body);
    }
    for (const std::size_t index : std::exchange(died_, {})) {
      if (actors_[index].client == nullptr) continue;
      if (!actors_[index].client->gone)
        died_.push_back(index);
      else
        actors_[index] = Actor{};
    }
    for (Actor& actor : actors_)
      if (actor.client != nullptr) digest_ = digest_ * 31 + actor.leases.size();
  }

  // The engine's, which transfers carry.
  std::uint64_t number_of(const Harness::Client& client, Handle handle) {
    if (!harness_.catalog) return ++numbers_;
    for (std::size_t record = 0;; ++record)
      if (harness_.catalog->session(record).id == static_cast<std::uint32_t>(client.id))
        return harness_.catalog->tensor(record, terrace::index(handle.slot)).state.number;
  }

  template <typename T>
  void replied(std::size_t, Actor&, const T&, const Result<ReplyBody>& result) {
    if (!result) {
      EXPECT_NE(result.error().code, ErrorCode::kInternal) << result.error().message;
    }
  }
  void replied(std::size_t, Actor& actor, const OpenSession&, const Result<ReplyBody>& result) {
    if (!result) {
      actor.opening.reset();
      return;
    }
    const auto& opened = std::get<SessionOpened>(*result);
    actor.opening->id = opened.session;
    actor.client = harness_.clients.emplace_back(std::move(actor.opening)).get();
    actor.offers = opened.places;
  }
  void replied(std::size_t index, Actor& actor, const CloseSession&, const Result<ReplyBody>& result) {
    EXPECT_TRUE(result);
    if (actor.client->gone)
      actors_[index] = Actor{};
    else
      died_.push_back(index);
  }
  void replied(std::size_t, Actor& actor, const CreateTensors& body, const Result<ReplyBody>& result) {
    if (!result) {
      EXPECT_TRUE(result.error().code == ErrorCode::kResourceExhausted || actor.ending ||
                  result.error().code == ErrorCode::kDeadlineExceeded)
          << result.error().message;
      return;
    }
    const auto& handles = std::get<Handles>(*result).tensors;
    for (std::size_t i = 0; i < handles.size(); ++i) {
      ModelTensor tensor;
      tensor.handle = handles[i];
      tensor.name = body.tensors[i].name;
      tensor.bytes = body.tensors[i].bytes;
      tensor.number = number_of(*actor.client, handles[i]);
      if (!actor.ending) actor.tensors.push_back(std::move(tensor));
    }
  }
  void replied(std::size_t, Actor& actor, const Acquire& body, const Result<ReplyBody>& result) {
    if (actor.ending) return;
    if (!result) return check_refusal(actor, body.tensors, body.mode, result.error());
    const auto& located = std::get<Located>(*result).tensors;
    for (std::size_t i = 0; i < body.tensors.size(); ++i) {
      EXPECT_EQ(located[i].place, body.place);
      ModelTensor* tensor = find(actor, body.tensors[i]);
      ASSERT_NE(tensor, nullptr);
      leased(actor, *tensor, body.mode, false);
    }
  }
  void check_refusal(Actor& actor, const std::vector<Handle>& set, shm::Mode mode, const Error& error) {
    bool may_be_lost = false;
    for (const Handle handle : set) {
      const ModelTensor* tensor = find(actor, handle);
      may_be_lost |= tensor == nullptr || tensor->may_be_lost;
    }
    if (error.code == ErrorCode::kDataLoss) {
      EXPECT_TRUE(may_be_lost && mode != shm::Mode::kOverwrite) << error.message;
    }
    if (error.code == ErrorCode::kInternal) {
      EXPECT_TRUE(faults_) << error.message;
    }
  }
  void replied(std::size_t, Actor& actor, const Move& body, const Result<ReplyBody>& result) {
    if (!result && !actor.ending) check_refusal(actor, body.tensors, shm::Mode::kRead, result.error());
  }
  void replied(std::size_t, Actor& actor, const Pin& body, const Result<ReplyBody>& result) {
    if (actor.ending) return;
    if (!result) return check_refusal(actor, body.tensors, shm::Mode::kRead, result.error());
    for (const Handle handle : body.tensors)
      if (std::find(actor.pinned.begin(), actor.pinned.end(), handle) == actor.pinned.end())
        actor.pinned.push_back(handle);
  }
  void replied(std::size_t, Actor& actor, const DontNeed& body, const Result<ReplyBody>& result) {
    if (!result) return;
    for (const Handle handle : body.tensors)
      if (ModelTensor* tensor = find(actor, handle)) tensor->written = tensor->may_be_lost = false;
  }
  void replied(std::size_t, Actor& actor, const DeleteTensors& body, const Result<ReplyBody>& result) {
    if (!result) return;
    for (const Handle handle : body.tensors) {
      std::erase_if(actor.tensors, [&](const ModelTensor& tensor) { return tensor.handle == handle; });
      std::erase(actor.pinned, handle);
    }
  }

  // Nothing leased or pinned, everything that is under way done: then nothing of an open session waits.
  void calm() {
    faults_ = false;
    for (int pass = 0; pass < 200 && !::testing::Test::HasFailure(); ++pass) {
      harness_.settle();
      take_replies();
      bool more = false;
      for (std::size_t index = 0; index < actors_.size(); ++index) {
        while (!actors_[index].leases.empty() && !actors_[index].ending) {
          release(index);
          more = true;
        }
        while (!actors_[index].pinned.empty() && !actors_[index].ending) {
          unpin(index);
          more = true;
        }
      }
      take_replies();
      if (!more && harness_.transfers.empty() && harness_.orders.empty()) break;
    }
    for (const auto& [id, asked] : asked_)
      EXPECT_TRUE(std::holds_alternative<OpenSession>(asked.body))
          << "stuck: request " << static_cast<std::uint64_t>(id) << " of kind " << asked.body.index();
    for (std::size_t index = 0; index < actors_.size(); ++index) check_floor(index);
    for (Actor& actor : actors_)
      if (actor.client != nullptr && !actor.ending) check_bytes(actor);
    faults_ = true;
  }

  // A set within the floor is granted to a session that holds nothing.
  void check_floor(std::size_t index) {
    Actor& actor = actors_[index];
    if (actor.client == nullptr || actor.ending) return;
    for (const PlaceOffer& offer : actor.offers) {
      std::vector<Handle> set;
      std::uint64_t bytes = 0;
      for (const ModelTensor& tensor : actor.tensors) {
        if (bytes + align_up(tensor.bytes, kPageBytes) > offer.guarantee_bytes) continue;
        bytes += align_up(tensor.bytes, kPageBytes);
        set.push_back(tensor.handle);
      }
      const auto result = harness_.acquire(*actor.client, offer.place, shm::Mode::kOverwrite, set);
      last_request_ += 1;
      ASSERT_TRUE(result) << result.error().message;
      for (const Handle handle : set) leased(actor, *find(actor, handle), shm::Mode::kOverwrite, false);
      while (!actor.leases.empty()) release(index);
      harness_.settle();
      take_replies();
    }
  }

  void check_bytes(Actor& actor) {
    for (ModelTensor& tensor : actor.tensors) {
      if (!tensor.written) continue;
      const auto seen = harness_.read(*actor.client, tensor.handle, place());
      last_request_ += 1;
      if (seen)
        EXPECT_EQ(*seen, tensor.value) << tensor.name;
      else
        EXPECT_TRUE((seen.error().code == ErrorCode::kDataLoss && tensor.may_be_lost) ||
                    seen.error().code == ErrorCode::kResourceExhausted)
            << tensor.name << ": " << seen.error().message;
    }
  }

  void finish() {
    calm();
    for (int round = 0; round < 20; ++round) {
      for (std::size_t index = 0; index < actors_.size(); ++index)
        if (actors_[index].client != nullptr && !actors_[index].ending) end(index);
      harness_.settle();
      take_replies();
    }
    EXPECT_EQ(harness_.open_requests(), 0u);
    std::uint64_t granted = 0;
    std::uint64_t refused = 0;
    for (const PlaceStatus& at : harness_.status().places) {
      granted += at.hits + at.waits;
      refused += at.errors;
    }
    std::cout << granted << " leases granted, " << refused << " acquires refused\n";
    EXPECT_GT(granted * 2, refused) << "much of what is asked for can be had";
    for (const TierStatus& tier : harness_.status().tiers) {
      EXPECT_EQ(tier.used_bytes, 0u);
      EXPECT_EQ(tier.guaranteed_bytes, 0u);
    }
  }

  std::mt19937_64 random_;
  Harness harness_;
  Options options_;
  std::vector<Actor> actors_;
  std::vector<std::uint32_t> places_;
  std::uint32_t devices_ = 0;
  bool has_block_ = false;
  bool faults_ = true;
  std::map<RequestId, Asked> asked_;
  std::vector<std::size_t> died_;
  std::uint64_t last_request_ = 0;
  std::uint64_t named_ = 0;
  std::uint64_t values_ = 0;
  std::uint64_t numbers_ = 0;
  std::uint64_t digest_ = 0;
};

inline Options options_for(unsigned seed) {
  Options options;
  const auto device = [](int n) { return tier_of("device:" + std::to_string(n), tier::Kind::kDevice, 6 * kMiB); };
  const TierOptions memory = tier_of("memory", tier::Kind::kMemory, 10 * kMiB);
  const TierOptions block = tier_of("block", tier::Kind::kBlock, 64 * kMiB);
  const TierOptions only = seed % 12 == 5 ? device(0) : memory;
  const std::vector<std::vector<TierOptions>> setups = {{device(0), memory, block},
                                                        {device(0), memory, block},
                                                        {device(0), memory},
                                                        {memory, block},
                                                        {device(0), device(1), memory, block},
                                                        {only}};
  options.tiers = setups[seed % setups.size()];
  if (seed % 12 == 5) options.tiers.push_back(block);
  options.transfers_in_flight_max = seed % 3 == 0 ? 1 : 4;
  options.spare_share = seed % 2 == 0 ? 0.1 : 0.0;
  return options;
}

}  // namespace terrace::engine
