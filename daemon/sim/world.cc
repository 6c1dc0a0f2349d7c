// SPDX-License-Identifier: Apache-2.0
// What the trainers do.
#include "sim/world.h"

#include <fmt/format.h>

#include <algorithm>
#include <ostream>

namespace terrace::sim {

using namespace engine;

namespace {

constexpr std::size_t kTrainers = 4;
constexpr std::size_t kTensorsMax = 40;  // of a trainer
constexpr std::size_t kSlots = 64;

}  // namespace

engine::Options tiers_by_seed(std::uint64_t seed) {
  const auto device = [seed](int n) {
    TierOptions tier = tier_of(fmt::format("device:{}", n), tier::Kind::kDevice, 6 * kMiB);
    tier.write_back_early = (seed + static_cast<std::uint64_t>(n)) % 5 < 3;
    return tier;
  };
  const TierOptions memory = tier_of("memory", tier::Kind::kMemory, 10 * kMiB);
  const TierOptions block = tier_of("block", tier::Kind::kBlock, 64 * kMiB);
  const TierOptions only = seed % 12 == 5 ? device(0) : memory;
  const std::vector<std::vector<TierOptions>> setups = {{device(0), memory, block},
                                                        {device(0), memory, block},
                                                        {device(0), memory},
                                                        {memory, block},
                                                        {device(0), device(1), memory, block},
                                                        {only}};
  Options options;
  options.tiers = setups[seed % setups.size()];
  if (seed % 12 == 5) options.tiers.push_back(block);
  options.transfers_in_flight_max = seed % 3 == 0 ? 1 : 4;
  options.spare_share = seed % 2 == 0 ? 0.1 : 0.0;
  options.observe = seed % 2 == 0;
  options.write_back_period = Duration(5 + seed % 50);
  options.outage_pauses = {Duration(5 + seed % 20), Duration(80)};
  options.retired_pauses = {Duration(20 + seed % 50), Duration(300)};
  if (seed % 7 < 3) options.make_policy = make_next_use_policy;
  if (seed % 7 == 3) options.make_policy = make_s3_fifo_policy;
  return options;
}

World::World(WorldOptions options)
    : options_(std::move(options)),
      node_(options_.engine),
      trainers_(kTrainers),
      has_block_(options_.engine.tiers.back().kind == tier::Kind::kBlock),
      faults_(options_.faults) {
  std::uint32_t devices = 0;
  for (const TierOptions& tier : options_.engine.tiers) {
    if (tier.kind == tier::Kind::kMemory) places_.push_back(kHost);
    if (tier.kind == tier::Kind::kDevice) places_.push_back(kDevice + devices++);
  }
}

void World::say(const std::string& what) const {
  if (options_.trace != nullptr) *options_.trace << what << '\n';
}

void World::event(std::uint64_t number) {
  random_ = Random(options_.seed, number);
  if (options_.trace != nullptr) *options_.trace << number << ": ";
  arm();
  break_disk(number);
  try {
    act();
    node_.catalog.between_stores = nullptr;
    for (const std::size_t index : std::exchange(doorbells_, {}))
      if (trainers_[index].open()) node_.ring(*trainers_[index].client);
    take_replies();
    if (options_.restarts && random_.one_in(400)) restart();
  } catch (const Death&) {
    restart();
  }
}

void World::act() {
  const std::size_t index = random_.below(trainers_.size());
  Trainer& trainer = trainers_[index];
  const std::uint64_t dice = random_.below(100);
  if (dice < 35) return complete_something();
  if (dice < 40) return node_.advance(node_.now + Duration(random_.below(10)));
  if (options_.faults && random_.one_in(100)) return misfortune();
  if (trainer.ending || node_.now < trainer.stopped_until) return;
  if (trainer.client == nullptr) return open(index);
  if (trainer.client->scribbles && random_.one_in(2)) return scribble(trainer);
  if (random_.one_in(50)) return foresee(trainer);
  if (dice < 50) return fast_lease(index);
  if (dice < 66) return release(index);
  if (dice < 70) return create(index);
  if (dice < 85) {
    std::vector<Handle> set = some_tensors(trainer);
    Modes modes = some_modes(set.size());
    return send(index, Acquire{place(), std::move(modes), std::move(set)}, deadline());
  }
  if (dice < 89) {
    const std::uint32_t to = has_block_ && random_.one_in(3) ? shm::kPlaceBlock : place();
    return send(index, Move{to, some_tensors(trainer)}, deadline());
  }
  if (dice < 92) return send(index, Prefetch{place(), some_tensors(trainer)}, kNever);
  if (dice < 94) return send(index, Evict{some_tensors(trainer)}, kNever);
  if (dice < 95) return send(index, DontNeed{some_tensors(trainer, 1)}, kNever);
  if (dice < 96) return send(index, DeleteTensors{some_tensors(trainer, 1)}, kNever);
  if (dice < 97) return send(index, Pin{place(), some_tensors(trainer, 1)}, deadline());
  if (dice < 98) return unpin(index);
  if (dice < 99) return send(index, ListTensors{}, kNever);
  if (random_.one_in(12)) return end(index);
  if (random_.one_in(3)) return declare(index);
  send(index, MarkStep{}, kNever);
}

// All alike, or each in its own way.
Modes World::some_modes(std::size_t tensors) {
  const auto mode = [&] { return static_cast<shm::Mode>(random_.below(3)); };
  if (random_.one_in(2)) return mode();
  std::vector<shm::Mode> each(tensors);
  std::ranges::generate(each, mode);
  return each;
}

Time World::deadline() {
  if (random_.one_in(3)) return kNever;
  return node_.now + Duration(random_.below(30));
}

void World::send(std::size_t index, Body body, Time at) {
  const Trainer& trainer = trainers_[index];
  const SessionId id = trainer.client != nullptr ? trainer.client->id : SessionId{};
  asked_.emplace(node_.next_request(), Asked{index, body});  // also if the process ends meanwhile
  if (options_.trace != nullptr) {
    std::string tensors;
    std::visit(
        [&](const auto& what) {
          if constexpr (requires { what.tensors[0].slot; })
            for (std::size_t i = 0; i < what.tensors.size(); ++i) {
              tensors += fmt::format(" {}", terrace::index(what.tensors[i].slot));
              if constexpr (requires { what.modes; }) tensors += "rwo"[static_cast<int>(what.modes[i])];
            }
        },
        body);
    say(fmt::format("trainer {} sends request {}, kind {}, tensors{}, deadline {}", index,
                    static_cast<std::uint64_t>(node_.next_request()), body.index(), tensors,
                    at == kNever ? -1 : static_cast<std::int64_t>(at)));
  }
  node_.send(id, std::move(body), at);
}

std::vector<Handle> World::some_tensors(const Trainer& trainer, std::size_t most) {
  std::vector<Handle> set;
  const std::size_t count = 1 + random_.below(most);
  for (std::size_t i = 0; i < count && !trainer.content->tensors.empty(); ++i) {
    const Handle handle = trainer.content->tensors[random_.below(trainer.content->tensors.size())].handle;
    if (std::ranges::find(set, handle) == set.end()) set.push_back(handle);
  }
  return set;
}

void World::open(std::size_t index) {
  Trainer& trainer = trainers_[index];
  if (trainer.opening != nullptr || !random_.one_in(4)) return;
  OpenSession open;
  trainer.opening = std::make_unique<Node::Client>(kSlots);
  open.table = trainer.opening->table;
  open.local_world_size = static_cast<std::uint32_t>(1 + random_.below(8));
  open.maps_segments = options_.restarts;
  if (random_.one_in(2)) open.guarantees.push_back({place(), random_.below(3) * kSegment});
  if (random_.one_in(2)) {
    open.share = ShareAccess{fmt::format("share {}", random_.below(2)), random_.one_in(3), !random_.one_in(3)};
    if (!open.share->create) open.guarantees.clear();
  }
  send(index, open, deadline());
}

void World::end(std::size_t index) {
  Trainer& trainer = trainers_[index];
  trainer.ending = true;
  bereave(trainer);
  if (random_.one_in(2)) return send(index, CloseSession{}, kNever);
  say(fmt::format("trainer {} dies", index));
  ++counts_.deaths;
  node_.engine->session_died(node_.now, trainer.client->id);
  node_.drain();
  dying_.push_back(index);
}

// What it was writing in a share is torn for those who stay.
void World::bereave(Trainer& trainer) {
  for (const Lease& lease : std::exchange(trainer.leases, {})) {
    Tensor* tensor = trainer.in_share && lease.mode != shm::Mode::kRead ? find(trainer, lease.handle) : nullptr;
    if (tensor == nullptr) continue;
    tensor->written = tensor->torn_beside = false;
    tensor->may_be_lost = is_leased_in_vain(trainer, lease.handle);
    tensor->torn = true;
  }
}

void World::create(std::size_t index) {
  if (trainers_[index].content->tensors.size() > kTensorsMax) return;
  CreateTensors body;
  const std::size_t count = 1 + random_.below(3);
  for (std::size_t i = 0; i < count; ++i)
    body.tensors.push_back(spec_of(fmt::format("t{}", ++named_), 1 + random_.below(kMiB)));
  if (random_.one_in(20)) body.tensors[0].bytes = kSegment * 2;
  send(index, std::move(body), deadline());
}

// Whatever a plan says, no law breaks: this one says anything.
void World::foresee(const Trainer& trainer) {
  foresight::Plan plan;
  const auto slot = [&] {
    return Slot{static_cast<std::uint32_t>(random_.below(random_.one_in(20) ? 3 * kSlots : 24))};
  };
  const auto some_place = [&] { return random_.one_in(10) ? static_cast<std::uint32_t>(random_.below(20)) : place(); };
  std::int64_t at = 0;
  for (std::uint64_t left = random_.below(60); left > 0; --left) {
    at += static_cast<std::int64_t>(random_.below(20'000'000));
    const std::int64_t next =
        random_.one_in(8) ? foresight::kBeyond : at + static_cast<std::int64_t>(random_.below(200'000'000));
    plan.uses.push_back({.slot = slot(),
                         .place = some_place(),
                         .give_up = random_.one_in(2),
                         .give_up_below = random_.one_in(2),
                         .comes_back = random_.one_in(2),
                         .writes = random_.one_in(2),
                         .at_ns = at,
                         .next_ns = next});
  }
  plan.period_ns = at;
  for (std::uint64_t left = random_.below(20); left > 0; --left) {
    const auto after = static_cast<std::uint32_t>(random_.below(40));
    plan.cleans.push_back({after, slot(), some_place(), after / 2, after % 4 == 0});
  }
  for (std::uint64_t left = random_.below(20); left > 0; --left)
    plan.fetches.push_back({static_cast<std::uint32_t>(random_.below(40)), slot(), some_place(),
                            static_cast<std::int64_t>(random_.below(2'000'000'000)), random_.one_in(3)});
  say(fmt::format("a plan of {} uses, {} cleans and {} fetches", plan.uses.size(), plan.cleans.size(),
                  plan.fetches.size()));
  node_.engine->plan(node_.now, trainer.client->id, std::make_shared<const foresight::Plan>(std::move(plan)));
  node_.drain();
}

// Of its next steps, now and then what nobody may say.
void World::declare(std::size_t index) {
  DeclareStep step{.kind = static_cast<std::uint32_t>(random_.below(4)),
                   .position = static_cast<std::uint32_t>(random_.one_in(2) ? 0 : random_.below(6)),
                   .sets = {}};
  for (std::uint64_t left = random_.below(5); left > 0; --left) {
    const auto mode = static_cast<shm::Mode>(random_.below(3));
    const Duration compute = random_.one_in(20) ? std::chrono::hours(20) : Duration(random_.below(1'000'000));
    step.sets.push_back({random_.one_in(20) ? static_cast<std::uint32_t>(random_.below(20)) : place(), mode, compute,
                         some_tensors(trainers_[index])});
  }
  send(index, std::move(step), kNever);
}

void World::unpin(std::size_t index) {
  Trainer& trainer = trainers_[index];
  if (trainer.pinned.empty()) return;
  const Handle handle = trainer.pinned.back();
  trainer.pinned.pop_back();
  send(index, Unpin{{handle}}, kNever);
}

// As the client library: in the table, if the copy is published.
World::Tensor* World::take_in_table(std::size_t index) {
  Trainer& trainer = trainers_[index];
  if (trainer.content->tensors.empty() || !trainer.sane()) return nullptr;
  Tensor& tensor = trainer.content->tensors[random_.below(trainer.content->tensors.size())];
  const auto mode = static_cast<shm::Mode>(random_.below(3));
  if (mode != shm::Mode::kOverwrite && is_asked_for(index, tensor.handle, true))
    return nullptr;  // nobody reads what is being written
  LeaseTable table = trainer.client->table;
  const shm::Step step = shm::acquire(table.word(tensor.handle.slot), tensor.handle.incarnation, mode);
  if (step.outcome != shm::Outcome::kDone) return nullptr;
  say(fmt::format("trainer {} leases tensor {} in the table, mode {}", index, terrace::index(tensor.handle.slot),
                  static_cast<int>(mode)));
  leased(trainer, tensor, mode);
  return &tensor;
}

// By another thread of the trainer, which may have its lease already and does not know yet.
bool World::is_asked_for(std::size_t index, Handle handle, bool to_write) const {
  return std::ranges::any_of(asked_, [&](const auto& entry) {
    const auto* acquire = std::get_if<Acquire>(&entry.second.body);
    if (entry.second.trainer != index || acquire == nullptr) return false;
    const auto at = std::ranges::find(acquire->tensors, handle) - acquire->tensors.begin();
    return at < std::ssize(acquire->tensors) &&
           (!to_write || acquire->modes[static_cast<std::size_t>(at)] != shm::Mode::kRead);
  });
}

void World::fast_lease(std::size_t index) {
  const Tensor* tensor = take_in_table(index);
  if (tensor == nullptr) return;
  const Access access{tensor->handle.slot, trainers_[index].leases.back().mode};
  node_.engine->accessed(node_.now, trainers_[index].client->id, {&access, 1}, 1);
  node_.drain();  // who follows a plan goes on by it
}

void World::leased(Trainer& trainer, Tensor& tensor, shm::Mode mode) {
  ++counts_.granted;
  if (trainer.in_share) check_alone(trainer, tensor, mode);
  trainer.leases.push_back({tensor.handle, mode});
  if (trainer.client->scribbles) return;
  if (tensor.torn && mode != shm::Mode::kOverwrite) {
    require(tensor.torn_beside, fmt::format("what is torn is overwritten first, and {} is", tensor.name));
    return;
  }
  // Another overwrite may have been given up since this one was granted, and before its answer was read.
  tensor.torn = trainer.client->table.load(tensor.handle.slot).torn;
  if (mode == shm::Mode::kOverwrite) tensor.may_be_torn = false;
  const std::uint64_t seen = node_.look(*trainer.client, tensor.handle);
  if (tensor.may_be_forgotten && seen == 0) tensor.written = false;
  if (mode != shm::Mode::kOverwrite)
    require(seen == (tensor.written ? tensor.value : 0),
            fmt::format("law 1: tensor {} holds {:#x} and {:#x} is read", tensor.name, tensor.value, seen));
  require(mode != shm::Mode::kRead || tensor.written || tensor.may_be_zeros,
          fmt::format("a read lease is on content, and {} has none", tensor.name));
  if (mode == shm::Mode::kRead) return;
  fill(trainer, tensor);
  if (mode == shm::Mode::kOverwrite) tensor.may_be_lost = is_leased_in_vain(trainer, tensor.handle);
}

// Who writes in a share has the tensor alone.
void World::check_alone(const Trainer& trainer, const Tensor& tensor, shm::Mode mode) const {
  for (const Trainer& other : trainers_) {
    if (&other == &trainer || other.content != trainer.content) continue;
    for (const Lease& lease : other.leases)
      require(lease.handle != tensor.handle || (mode == shm::Mode::kRead && lease.mode == shm::Mode::kRead),
              fmt::format("who writes {} in a share has it alone", tensor.name));
  }
}

void World::fill(Trainer& trainer, Tensor& tensor) {
  tensor.written = !tensor.torn;
  tensor.may_be_forgotten = false;
  tensor.value = ++values_ << 20;
  node_.fill(*trainer.client, tensor.handle, tensor.value);
}

World::Lease World::take_lease(std::size_t index) {
  Trainer& trainer = trainers_[index];
  const std::size_t at = random_.below(trainer.leases.size());
  const Lease lease = trainer.leases[at];
  trainer.leases.erase(trainer.leases.begin() + static_cast<std::ptrdiff_t>(at));
  Tensor* tensor = find(trainer, lease.handle);
  if (lease.mode != shm::Mode::kRead && tensor != nullptr && !trainer.client->scribbles) fill(trainer, *tensor);
  return lease;
}

// Whether somebody waits for it: then the doorbell is to be rung.
bool World::release_in_table(std::size_t index, Lease lease) {
  say(fmt::format("trainer {} releases tensor {}, mode {}", index, terrace::index(lease.handle.slot),
                  static_cast<int>(lease.mode)));
  return node_.release_in_table(*trainers_[index].client, lease.handle, lease.mode);
}

void World::release(std::size_t index) {
  Trainer& trainer = trainers_[index];
  if (trainer.leases.empty()) return;
  const Lease lease = take_lease(index);
  if (trainer.client->scribbles) return;
  Tensor* tensor = find(trainer, lease.handle);
  // A trainer that outlives the daemon releases in the word: a release that is asked for could be done twice.
  const bool asks = !options_.restarts && random_.one_in(3);
  const bool torn = lease.mode == shm::Mode::kOverwrite && random_.one_in(12);
  if (torn && tensor != nullptr) {
    tensor->written = false;
    tensor->may_be_lost = is_leased_in_vain(trainer, lease.handle);
    tensor->torn = true;
    tensor->torn_beside = is_asked_for(index, lease.handle, false);
  }
  if (torn)
    say(fmt::format("trainer {} gives the overwrite of tensor {} up", index, terrace::index(lease.handle.slot)));
  if (torn && !asks) return node_.abandon(*trainer.client, lease.handle);
  if (asks) return send(index, Release{lease.mode, {lease.handle}, torn}, kNever);
  if (release_in_table(index, lease)) node_.ring(*trainer.client);
}

World::Tensor* World::find(Trainer& trainer, Handle handle) {
  const auto found = std::ranges::find(trainer.content->tensors, handle, &Tensor::handle);
  return found == trainer.content->tensors.end() ? nullptr : &*found;
}

}  // namespace terrace::sim
