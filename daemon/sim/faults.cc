// SPDX-License-Identifier: Apache-2.0
// What goes wrong: devices that fail, hang and lie, trainers that stop and scribble, a daemon that dies.
#include <fmt/format.h>

#include <algorithm>

#include "sim/world.h"

namespace terrace::sim {

using namespace engine;

namespace {

constexpr Duration kHang{300};  // ten times the longest deadline
constexpr Duration kStop{60};
constexpr TierId kGpu{0};
const Error kGpuFailed{ErrorCode::kUnavailable, "the GPU failed", 0};

}  // namespace

void World::complete_something() {
  if (node_.former_at_work() && random_.one_in(3)) return former();
  if (!node_.orders.empty() && (node_.transfers.empty() || random_.one_in(4))) return complete_order();
  if (!node_.transfers.empty()) complete_transfer();
}

// What it had begun when it died lands, a page now and a page then; and at last all of it has.
void World::former() {
  const bool ends = random_.one_in(40);
  say(ends ? "the last that a former daemon had begun is done" : "something lands that a former daemon had begun");
  const auto coin = [this] { return random_.one_in(4); };
  if (ends)
    node_.end_former(coin);
  else
    node_.land(coin);
}

void World::complete_order() {
  std::size_t at = random_.below(node_.orders.size());
  for (std::size_t i = 0; i < at; ++i)  // those of one space are carried out in order
    if (node_.orders[i].session == node_.orders[at].session && node_.orders[i].tier == node_.orders[at].tier) at = i;
  const bool add = node_.orders[at].kind == mover::SegmentOrder::Kind::kAdd;
  if (!faults_ || !add || !random_.one_in(40)) {
    say("a segment comes or goes");
    return node_.complete_order(at);
  }
  say("no memory for a segment");
  ++counts_.faults;
  node_.complete_order(at, Error{ErrorCode::kResourceExhausted, "no memory", 12});
}

void World::complete_transfer() {
  const std::size_t at = random_.below(node_.transfers.size());
  const mover::Transfer& transfer = node_.transfers[at];
  if (gpu_failed_ && (transfer.from.tier == kGpu || transfer.to.tier == kGpu))
    return node_.complete_transfer(at, kGpuFailed, kGpu);
  const auto hangs = hanging_.find(transfer.id);
  if (hangs != hanging_.end() && node_.now < hangs->second) return;
  if (hangs != hanging_.end()) hanging_.erase(hangs);
  if (fails_by_disk(at)) return;
  const auto name = [&] {
    return fmt::format("transfer {} of tensor number {}", static_cast<std::uint64_t>(transfer.id), transfer.tensor);
  };
  const bool writes = transfer.link.kind == mover::LinkKind::kBlockWrite;
  if (faults_ && random_.one_in(150)) {
    say(name() + " fails");
    return fail_transfer(at);
  }
  if (faults_ && random_.one_in(300)) {
    say(name() + " hangs");
    ++counts_.faults;
    hanging_[transfer.id] = node_.now + kHang;
    return;
  }
  if (faults_ && writes && random_.one_in(60)) {
    const auto lie = static_cast<Lie>(1 + random_.below(3));
    say(fmt::format("{} is reported done, and is a lie of kind {}", name(), static_cast<int>(lie)));
    ++counts_.faults;
    return node_.complete_write(at, lie, random_.below(node_.disk_pages()),
                                [this](std::uint64_t tensor) { harm(tensor); });
  }
  say(name() + " is done");
  node_.complete_transfer(at);
}

void World::fail_transfer(std::size_t at) {
  const mover::Transfer& transfer = node_.transfers[at];
  const bool reads = transfer.link.kind == mover::LinkKind::kBlockRead;
  const bool slides = transfer.link.kind == mover::LinkKind::kMemcpy && !transfer.zero_fill;
  const bool writes = transfer.link.kind == mover::LinkKind::kBlockWrite;
  if (reads || slides) harm(transfer.tensor);
  ++counts_.faults;
  const TierId failed = writes ? transfer.to.tier : transfer.from.tier;
  // Bytes that do not match, bytes that the device gives up, or a device that does not answer.
  const std::uint64_t kind = reads ? random_.below(3) : 2;
  node_.fail_transfer(at, Error{kind < 2 ? ErrorCode::kDataLoss : ErrorCode::kInternal, "injected", kind == 0 ? 0 : 5},
                      failed, [this] { return random_.one_in(2); });
}

void World::misfortune() {
  if (may_lose_gpu() && !gpu_failed_ && random_.one_in(20)) return fail_gpu();
  const std::uint64_t dice = random_.below(10);
  const std::size_t index = random_.below(trainers_.size());
  Trainer& trainer = trainers_[index];
  if (dice < 5 && has_block_) {
    const std::uint64_t page = random_.below(node_.disk_pages());
    say(fmt::format("a bit of the disk's page {} flips", page));
    ++counts_.faults;
    return harm(node_.flip_bit(page));
  }
  if (dice < 7) {
    say(fmt::format("trainer {} stops", index));
    ++counts_.faults;
    trainer.stopped_until = node_.now + kStop;
    return;
  }
  if (!trainer.sane() || !random_.one_in(2)) return;
  if (trainer.in_share && trainer.writes) return;  // what it writes is everybody's
  say(fmt::format("trainer {} begins to scribble over its table", index));
  ++counts_.faults;
  trainer.client->scribbles = true;
  trainer.leases.clear();
}

// Words and addresses that nobody gave it: at random, nearly right, or out of range.
void World::scribble(Trainer& trainer) {
  shm::TableSlot& slot = trainer.client->slots[random_.below(trainer.client->slots.size())];
  say("scribbles");
  shm::Word word = shm::Word::unpack(slot.word.load());
  switch (random_.below(6)) {
    case 0:
      return slot.word.store(random_.next());
    case 1:
      word.state = static_cast<shm::State>(random_.below(8));
      return slot.word.store(word.packed());
    case 2:
      word.readers = static_cast<std::uint32_t>(random_.below(4));
      word.writers = static_cast<std::uint32_t>(random_.below(2));
      return slot.word.store(word.packed());
    case 3:
      word.incarnation += 1;
      return slot.word.store(word.packed());
    case 4:
      word.dirty = !word.dirty;
      word.turn = !word.turn;
      return slot.word.store(word.packed());
    default:
      slot.offset = random_.next();
      slot.place = static_cast<std::uint32_t>(random_.next());
      slot.bytes = random_.next();
      node_.engine->lease_ended(node_.now, trainer.client->id);
      return node_.drain();
  }
}

// A device has, or may have, other bytes of it than were written.
void World::harm(std::uint64_t tensor_number) {
  for (Trainer& trainer : trainers_)
    for (Tensor& tensor : trainer.content->tensors)
      if (tensor.number == tensor_number) tensor.may_be_lost = true;
}

void World::harm_all() {
  for (Trainer& trainer : trainers_)
    for (Tensor& tensor : trainer.content->tensors) tensor.may_be_lost = true;
}

bool World::is_leased_in_vain(const Trainer& trainer, Handle handle) const {
  return (gpu_failed_ || lacking_.contains(trainer.client->space)) &&
         trainer.client->slots[terrace::index(handle.slot)].place == kDevice;
}

// There is one, and somewhere else to go.
bool World::may_lose_gpu() const {
  return options_.faults && options_.engine.tiers.front().kind == tier::Kind::kDevice && places_.size() > 1;
}

void World::fail_gpu() {
  say("the GPU fails");
  ++counts_.faults;
  gpu_failed_ = true;
  harm_all();
  node_.engine->tier_failed(node_.now, kGpu, kGpuFailed);
  node_.drain();
}

// What a successor cannot take back: all that a failed GPU has, and now and then a segment.
std::vector<LostSegment> World::lose_segments() {
  std::vector<LostSegment> lost;
  if (!may_lose_gpu()) return lost;
  for (std::size_t record = 0; record < node_.catalog.shape().sessions_max; ++record) {
    const SessionRecord& was = node_.catalog.session(record);
    for (std::uint64_t offset = 0; was.lives() && offset < was.mapped_bytes[0]; offset += kSegment)
      if (gpu_failed_ || random_.one_in(20))
        lost.push_back({SessionId{was.id}, kGpu, {offset, kSegment}, "it did not come back"});
  }
  for (const LostSegment& segment : lost) lacking_.insert(segment.space);
  if (!lost.empty()) harm_all();
  if (gpu_failed_) gpu_failed_ = !random_.one_in(2);
  return lost;
}

// Between any two stores of the catalog the process may end, and a trainer may lease or release in its table.
void World::arm() {
  if (!options_.restarts || !random_.one_in(20)) return;
  node_.catalog.between_stores = [this, left = random_.below(random_.one_in(2) ? 12 : 400)]() mutable {
    if (left-- != 0) return;
    if (random_.one_in(2)) throw Death{};
    meanwhile();
    left = random_.below(4);
  };
}

void World::meanwhile() {
  const std::size_t index = random_.below(trainers_.size());
  if (!trainers_[index].sane() || node_.now < trainers_[index].stopped_until) return;
  if (random_.one_in(2)) return static_cast<void>(take_in_table(index));
  if (trainers_[index].leases.empty()) return;
  if (release_in_table(index, take_lease(index))) doorbells_.push_back(index);
}

void World::restart() {
  const bool lingers = has_block_ && random_.one_in(2);
  say(lingers ? "the daemon dies in the midst of reads and writes, and has a successor"
              : "the daemon dies, and has a successor");
  ++counts_.restarts;
  node_.catalog.between_stores = nullptr;
  hanging_.clear();
  doorbells_.clear();  // whoever waits is looked at anyway
  take_replies();      // those that were in their rings
  const std::vector<LostSegment> segments = lose_segments();
  const std::vector<RequestId> lost = node_.restart([this] { return random_.one_in(2); }, lingers, segments);
  if (gpu_failed_) node_.engine->tier_failed(node_.now, kGpu, kGpuFailed);
  node_.drain();
  take_replies();
  for (Trainer& trainer : trainers_) {
    if (trainer.client != nullptr && trainer.client->gone) trainer = Trainer{};
    if (trainer.sane()) check_counts(trainer);
  }
  dying_.clear();
  for (std::size_t index = 0; index < trainers_.size(); ++index) {
    if (!trainers_[index].ending) continue;
    node_.engine->session_died(node_.now, trainers_[index].client->id);
    node_.drain();
    dying_.push_back(index);
  }
  for (const RequestId id : lost) {
    const auto found = asked_.find(id);
    if (found == asked_.end()) continue;  // of calm()'s own
    Asked asked = std::move(found->second);
    asked_.erase(found);
    ask_again(asked.trainer, std::move(asked.body));
    take_replies();
  }
}

// Lease counts are what the trainer holds, and nothing else.
void World::check_counts(const Trainer& trainer) const {
  for (const Tensor& tensor : trainer.content->tensors) {
    const shm::Word word = trainer.client->table.load(tensor.handle.slot);
    const auto held = [&](bool reads) {
      return std::ranges::count_if(trainer.leases, [&](const Lease& lease) {
        return lease.handle == tensor.handle && (lease.mode == shm::Mode::kRead) == reads;
      });
    };
    require(word.readers == held(true) && word.writers == held(false),
            fmt::format("a restart keeps leases: tensor {} has {} readers and {} writers in its word, and in truth {} "
                        "and {}",
                        tensor.name, word.readers, word.writers, held(true), held(false)));
  }
}

void World::ask_again(std::size_t index, Body body) {
  Trainer& trainer = trainers_[index];
  if (std::holds_alternative<OpenSession>(body)) {
    trainer.opening.reset();
    return;
  }
  if (!trainer.open() && !trainer.in_share) return;
  if (const auto* acquire = std::get_if<Acquire>(&body); acquire != nullptr)
    for (std::size_t i = 0; i < acquire->tensors.size(); ++i)
      if (Tensor* tensor = find(trainer, acquire->tensors[i])) {
        tensor->may_be_zeros |= acquire->modes[i] == shm::Mode::kWrite;
        tensor->may_be_torn |= acquire->modes[i] == shm::Mode::kOverwrite;
      }
  if (const auto* given_up = std::get_if<DontNeed>(&body))
    for (const Handle handle : given_up->tensors)
      if (Tensor* tensor = find(trainer, handle)) tensor->may_be_forgotten = true;
  if (!trainer.open()) return;
  if (const auto* gone = std::get_if<DeleteTensors>(&body); gone != nullptr && trainer.writes) {
    for (const Handle handle : gone->tensors) {
      std::erase_if(trainer.content->tensors, [&](const Tensor& tensor) { return tensor.handle == handle; });
      std::erase(trainer.pinned, handle);
      send(index, DeleteTensors{{handle}}, kNever);  // done already, or done now
    }
    return;
  }
  send(index, std::move(body), kNever);
}

}  // namespace terrace::sim
