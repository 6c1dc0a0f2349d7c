// SPDX-License-Identifier: Apache-2.0
// What the trainers may be told, and what they may rely on.
#include <fmt/format.h>

#include <algorithm>

#include "sim/world.h"

namespace terrace::sim {

using namespace engine;

void World::take_replies() {
  for (const RequestId id : std::exchange(node_.answered_in_order, {})) {
    if (!node_.answered(id)) continue;  // looked at where it was asked
    const Result<ReplyBody> result = node_.reply(id);
    const auto found = asked_.find(id);
    require(found != asked_.end(), "a reply is to a request");
    const Asked asked = std::move(found->second);
    asked_.erase(found);
    digest_ = digest_ * 31 + static_cast<std::uint64_t>(id) +
              (result ? 0 : static_cast<std::uint64_t>(result.error().code) * 1000);
    say(fmt::format("request {} of trainer {} {}", static_cast<std::uint64_t>(id), asked.trainer,
                    result ? "is done" : "is refused: " + result.error().message));
    std::visit([&](const auto& body) { replied(asked.trainer, body, result); }, asked.body);
  }
  for (const std::size_t index : std::exchange(dying_, {})) {
    if (trainers_[index].client == nullptr) continue;
    if (!trainers_[index].client->gone)
      dying_.push_back(index);
    else
      trainers_[index] = Trainer{};
  }
  for (const Trainer& trainer : trainers_)
    if (trainer.client != nullptr) digest_ = digest_ * 31 + trainer.leases.size();
}

// 0: the session has ended meanwhile.
std::uint64_t World::number_of(const Node::Client& client, Handle handle) {
  for (std::size_t record = 0; record < node_.catalog.shape().sessions_max; ++record)
    if (node_.catalog.session(record).id == static_cast<std::uint32_t>(client.space))
      return node_.catalog.tensor(record, terrace::index(handle.slot)).state.number;
  return 0;
}

template <typename T>
void World::replied(std::size_t, const T&, const Result<ReplyBody>& result) {
  require(result || result.error().code != ErrorCode::kInternal,
          "nothing internal is answered: " + (result ? "" : result.error().message));
}

void World::replied(std::size_t index, const OpenSession& body, const Result<ReplyBody>& result) {
  Trainer& trainer = trainers_[index];
  if (!result) {
    trainer.opening.reset();
    return;
  }
  const auto& opened = std::get<SessionOpened>(*result);
  trainer.opening->id = opened.session;
  trainer.opening->space = opened.space;
  trainer.in_share = body.share.has_value();
  trainer.writes = opened.writes;
  if (body.share && body.share->create) shares_[body.share->name] = std::make_shared<Content>();
  if (body.share) trainer.content = shares_.at(body.share->name);
  trainer.client = node_.clients.emplace_back(std::move(trainer.opening)).get();
  trainer.offers = opened.places;
  if (body.share && !body.share->create) return;  // as it was guaranteed to whoever created it
  for (const PlaceOffer& offer : opened.places)
    require(!gpu_failed_ || offer.place != kDevice || offer.guarantee_bytes == 0,
            "nobody is guaranteed memory of a failed GPU");
}

void World::replied(std::size_t index, const CloseSession&, const Result<ReplyBody>& result) {
  require(result.has_value(), "an open session can be closed");
  if (trainers_[index].client->gone)
    trainers_[index] = Trainer{};
  else
    dying_.push_back(index);
}

void World::replied(std::size_t index, const CreateTensors& body, const Result<ReplyBody>& result) {
  Trainer& trainer = trainers_[index];
  if (!result) {
    const ErrorCode code = result.error().code;
    require(code == ErrorCode::kResourceExhausted || code == ErrorCode::kDeadlineExceeded || !trainer.sane() ||
                (code == ErrorCode::kPermissionDenied && !trainer.writes),
            "tensors are created unless there is no room: " + result.error().message);
    return;
  }
  const auto& handles = std::get<Handles>(*result).tensors;
  for (std::size_t i = 0; i < handles.size(); ++i) {
    Tensor tensor;
    tensor.handle = handles[i];
    tensor.name = body.tensors[i].name;
    tensor.bytes = body.tensors[i].bytes;
    tensor.number = number_of(*trainer.client, handles[i]);
    say(fmt::format("tensor {} is {}, number {}", terrace::index(tensor.handle.slot), tensor.name, tensor.number));
    if (!trainer.ending) trainer.content->tensors.push_back(std::move(tensor));
  }
}

void World::replied(std::size_t index, const Acquire& body, const Result<ReplyBody>& result) {
  Trainer& trainer = trainers_[index];
  if (!trainer.sane()) return;
  if (!result) return check_refusal(trainer, body.tensors, body.modes, result.error());
  const auto& located = std::get<Located>(*result).tensors;
  for (std::size_t i = 0; i < body.tensors.size(); ++i) {
    require(located[i].place == body.place, "a lease is at the place that was asked for");
    Tensor* tensor = find(trainer, body.tensors[i]);
    require(tensor != nullptr, "a lease is on a tensor that there is");
    leased(trainer, *tensor, body.modes[i]);
  }
}

void World::check_refusal(Trainer& trainer, const std::vector<Handle>& set, const Modes& modes, const Error& error) {
  ++counts_.refused;
  bool may_be_lost = false;  // some of what it would read
  for (std::size_t i = 0; i < set.size(); ++i) {
    const Tensor* tensor = find(trainer, set[i]);
    may_be_lost |= modes[i] != shm::Mode::kOverwrite && (tensor == nullptr || tensor->may_be_lost);
  }
  require(error.code != ErrorCode::kDataLoss || may_be_lost, "only what a device harmed is lost: " + error.message);
  require(error.code != ErrorCode::kInternal || faults_, "nothing internal is answered: " + error.message);
  require(error.code != ErrorCode::kPermissionDenied || (!trainer.writes && modes.write()),
          "who may, may: " + error.message);
}

void World::replied(std::size_t index, const Move& body, const Result<ReplyBody>& result) {
  Trainer& trainer = trainers_[index];
  if (!result && trainer.sane()) check_refusal(trainer, body.tensors, shm::Mode::kRead, result.error());
}

void World::replied(std::size_t index, const Pin& body, const Result<ReplyBody>& result) {
  Trainer& trainer = trainers_[index];
  if (!trainer.sane()) return;
  if (!result) return check_refusal(trainer, body.tensors, shm::Mode::kRead, result.error());
  for (const Handle handle : body.tensors)
    if (std::ranges::find(trainer.pinned, handle) == trainer.pinned.end()) trainer.pinned.push_back(handle);
}

void World::replied(std::size_t index, const DontNeed& body, const Result<ReplyBody>& result) {
  if (!result) return;
  for (const Handle handle : body.tensors)
    if (Tensor* tensor = find(trainers_[index], handle))
      tensor->written = tensor->may_be_lost = tensor->torn = tensor->may_be_forgotten = false;
}

void World::replied(std::size_t index, const DeleteTensors& body, const Result<ReplyBody>& result) {
  if (!result) return;
  Trainer& trainer = trainers_[index];
  for (const Handle handle : body.tensors) {
    std::erase_if(trainer.content->tensors, [&](const Tensor& tensor) { return tensor.handle == handle; });
    std::erase(trainer.pinned, handle);
  }
}

void World::calm() {
  constexpr int kPasses = 200;
  faults_ = false;
  say("calm");
  if (node_.former_at_work()) node_.end_former([this] { return random_.one_in(2); });
  hanging_.clear();
  for (std::size_t index = 0; index < trainers_.size(); ++index) {
    trainers_[index].stopped_until = {};
    if (trainers_[index].open() && !trainers_[index].sane()) end(index);
  }
  for (int pass = 0; pass < kPasses; ++pass) {
    node_.settle();
    take_replies();
    mend_disk();
    bool more = false;
    for (std::size_t index = 0; index < trainers_.size(); ++index) {
      while (!trainers_[index].leases.empty() && trainers_[index].open()) {
        release(index);
        more = true;
      }
      while (!trainers_[index].pinned.empty() && trainers_[index].open()) {
        unpin(index);
        more = true;
      }
    }
    take_replies();
    if (!more && node_.transfers.empty() && node_.orders.empty()) break;
  }
  for (const auto& [id, asked] : asked_)
    require(std::holds_alternative<OpenSession>(asked.body),
            fmt::format("nothing waits for ever: request {} of kind {} does", static_cast<std::uint64_t>(id),
                        asked.body.index()));
  for (const Trainer& trainer : trainers_)
    if (trainer.open()) check_given_up(trainer);
  for (std::size_t index = 0; index < trainers_.size(); ++index)
    if (trainers_[index].open()) check_floor(index);
  for (std::size_t index = 0; index < trainers_.size(); ++index)
    if (trainers_[index].open()) check_guarantee(index);
  for (Trainer& trainer : trainers_)
    if (trainer.open()) check_bytes(trainer);
  faults_ = options_.faults;
}

// Of a session that holds nothing, nothing can be leased on a failed GPU.
void World::check_given_up(const Trainer& trainer) const {
  for (const Tensor& tensor : trainer.content->tensors) {
    const shm::TableSlot& slot = trainer.client->slots[terrace::index(tensor.handle.slot)];
    require(!gpu_failed_ || slot.place != kDevice || !shm::Word::unpack(slot.word.load()).published(),
            fmt::format("what a failed GPU had is given up as its leases end, and {} is not", tensor.name));
  }
}

// A set within the floor is granted to a session that holds nothing.
void World::check_floor(std::size_t index) {
  Trainer& trainer = trainers_[index];
  if (!trainer.writes) return;
  for (const PlaceOffer& offer : trainer.offers) {
    if (offer.place == kDevice && (gpu_failed_ || lacking_.contains(trainer.client->space))) continue;
    std::vector<Handle> set;
    std::uint64_t bytes = 0;
    for (const Tensor& tensor : trainer.content->tensors) {
      if (bytes + align_up(tensor.bytes, kPageBytes) > offer.guarantee_bytes) continue;
      bytes += align_up(tensor.bytes, kPageBytes);
      set.push_back(tensor.handle);
    }
    const auto result = node_.acquire(*trainer.client, offer.place, shm::Mode::kOverwrite, set);
    require(result.has_value(),
            "a set within the floor is granted: " + (result ? std::string() : result.error().message));
    for (const Handle handle : set) leased(trainer, *find(trainer, handle), shm::Mode::kOverwrite);
    while (!trainer.leases.empty()) release(index);
    node_.settle();
    take_replies();
  }
}

// A guarantee is kept in any order and any grouping of leases, where memory can be stitched.
void World::check_guarantee(std::size_t index) {
  constexpr int kSteps = 16;
  Trainer& trainer = trainers_[index];
  const auto host = std::ranges::find(trainer.offers, kHost, &PlaceOffer::place);
  if (!trainer.writes || host == trainer.offers.end()) return;
  for (int step = 0; step < kSteps; ++step) {
    std::uint64_t left = host->guarantee_bytes;
    for (const Lease& lease : trainer.leases) left -= align_up(find(trainer, lease.handle)->bytes, kPageBytes);
    std::vector<Handle> set;
    for (const Tensor& tensor : trainer.content->tensors) {
      const bool held = std::ranges::find(trainer.leases, tensor.handle, &Lease::handle) != trainer.leases.end();
      if (held || align_up(tensor.bytes, kPageBytes) > left || !random_.one_in(3)) continue;
      left -= align_up(tensor.bytes, kPageBytes);
      set.push_back(tensor.handle);
    }
    if (!trainer.leases.empty() && (set.empty() || random_.one_in(3))) {
      release(index);
      continue;
    }
    if (set.empty()) continue;
    const auto result = node_.acquire(*trainer.client, kHost, shm::Mode::kOverwrite, set);
    require(result.has_value(),
            "what a guarantee still has can be leased: " + (result ? std::string() : result.error().message));
    for (const Handle handle : set) leased(trainer, *find(trainer, handle), shm::Mode::kOverwrite);
  }
  while (!trainer.leases.empty()) release(index);
  node_.settle();
  take_replies();
}

void World::check_bytes(Trainer& trainer) {
  for (const Tensor& tensor : trainer.content->tensors) {
    if (!tensor.written) continue;
    const auto seen = node_.read(*trainer.client, tensor.handle, gpu_failed_ ? places_.back() : place());
    if (seen)
      require(*seen == tensor.value,
              fmt::format("law 1: tensor {} holds {:#x} and {:#x} is read", tensor.name, tensor.value, *seen));
    else
      require((seen.error().code == ErrorCode::kDataLoss && tensor.may_be_lost) ||
                  (seen.error().code == ErrorCode::kFailedPrecondition &&
                   (tensor.may_be_torn || tensor.may_be_forgotten)) ||
                  seen.error().code == ErrorCode::kResourceExhausted,
              "what was written can be read: " + tensor.name + ": " + seen.error().message);
  }
}

void World::finish() {
  constexpr int kRounds = 20;
  calm();
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t index = 0; index < trainers_.size(); ++index)
      if (trainers_[index].open()) end(index);
    node_.settle();
    take_replies();
  }
  require(node_.open_requests() == 0, "law 6: every request has its reply");
  const Status status = node_.status();
  for (const TierStatus& tier : status.tiers)
    require(tier.used_bytes == 0 && tier.guaranteed_bytes == 0,
            fmt::format("nothing remains of nobody: {} has {} bytes used", tier.name, tier.used_bytes));
}

}  // namespace terrace::sim
