// SPDX-License-Identifier: Apache-2.0
#include "fuzz/catalog_images.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string>

#include "base/random.h"
#include "shm/word.h"
#include "sim/node.h"
#include "sim/world.h"

namespace terrace::fuzz {
namespace {

constexpr std::uint64_t kImages = 12;  // two of each set of tiers
constexpr std::size_t kTrainers = 3;
constexpr std::size_t kTensorsMax = 12;

// Random trainers on a node, until its daemon ends in the middle of something.
class EndingNode {
 public:
  explicit EndingNode(std::uint64_t seed) : random_(seed), options_(sim::tiers_by_seed(seed)), node_(options_) {
    options_.sessions_max = sim::Node::shape().sessions_max;
    std::uint32_t devices = 0;
    for (const engine::TierOptions& tier : options_.tiers) {
      if (tier.kind == tier::Kind::kMemory) places_.push_back(shm::kPlaceHost);
      if (tier.kind == tier::Kind::kDevice) places_.push_back(shm::kPlaceDevice0 + devices++);
    }
  }

  CatalogImage run() {
    for (std::size_t i = 0; i < kTrainers; ++i) {
      engine::OpenSession open;
      open.maps_segments = true;
      open.local_world_size = kTrainers;
      open.token.fill(static_cast<std::uint8_t>(i + 1));
      if (sim::Node::Client* client = node_.open(open, 64)) trainers_.push_back({client, {}});
    }
    TERRACE_CHECK(!trainers_.empty());
    for (std::uint64_t steps = 100 + random_.below(300); steps > 0; --steps) act();
    struct Death {};
    node_.catalog.between_stores = [left = random_.below(60)]() mutable {
      if (left-- == 0) throw Death{};
    };
    try {
      for (int step = 0; step < 100; ++step) act();
    } catch (const Death&) {
    }
    node_.catalog.between_stores = nullptr;
    return take_image();
  }

 private:
  struct Trainer {
    sim::Node::Client* client = nullptr;
    std::vector<Handle> tensors;
  };
  struct Asked {
    std::size_t trainer = 0;
    engine::Body body;
  };

  void act() {
    const std::size_t index = random_.below(trainers_.size());
    Trainer& trainer = trainers_[index];
    const std::uint64_t dice = random_.below(20);
    if (dice < 8) return complete_something();
    if (dice < 11) return release_something(trainer);
    if (dice == 11) return node_.advance(node_.now + Duration(random_.below(10)));
    if (trainer.tensors.size() < 2 || (dice == 12 && trainer.tensors.size() < kTensorsMax))
      return send(index,
                  engine::CreateTensors{{sim::spec_of("t" + std::to_string(++named_), 1 + random_.below(kMiB))}});
    const Handle tensor = trainer.tensors[random_.below(trainer.tensors.size())];
    const std::uint32_t place = places_[random_.below(places_.size())];
    if (dice == 13) return send(index, engine::Move{place, {tensor}});
    if (dice == 14) return send(index, engine::Evict{{tensor}});
    if (dice == 15) return send(index, engine::MarkStep{});
    if (dice == 16 && random_.below(4) == 0) return send(index, engine::Pin{place, {tensor}});
    if (dice == 16 && random_.below(4) == 0) {
      std::erase(trainer.tensors, tensor);
      return send(index, engine::DeleteTensors{{tensor}});
    }
    send(index, engine::Acquire{place, static_cast<shm::Mode>(random_.below(3)), {tensor}});
  }
  void send(std::size_t trainer, engine::Body body) {
    asked_[node_.next_request()] = {trainer, body};
    node_.send(trainers_[trainer].client->id, std::move(body), node_.now + Duration(20));
    take_replies();
  }
  void complete_something() {
    if (!node_.orders.empty())
      node_.complete_order(0);
    else if (!node_.transfers.empty())
      node_.complete_transfer(random_.below(node_.transfers.size()));
    take_replies();
  }
  void release_something(const Trainer& trainer) {
    for (const Handle tensor : trainer.tensors) {
      const shm::Word word = trainer.client->table.load(tensor.slot);
      if (word.leased())
        return node_.release(*trainer.client, tensor, word.readers != 0 ? shm::Mode::kRead : shm::Mode::kWrite);
    }
  }
  void take_replies() {
    for (const RequestId id : std::exchange(node_.answered_in_order, {})) {
      const Result<engine::ReplyBody> result = node_.reply(id);
      const auto asked = asked_.extract(id);
      if (asked.empty() || !result) continue;
      Trainer& trainer = trainers_[asked.mapped().trainer];
      if (const auto* made = std::get_if<engine::Handles>(&*result)) trainer.tensors.push_back(made->tensors.at(0));
      if (const auto* leased = std::get_if<engine::Acquire>(&asked.mapped().body); leased && leased->modes.write())
        node_.fill(*trainer.client, leased->tensors.at(0), named_ << 20);
    }
  }

  CatalogImage take_image() {
    CatalogImage image{.options = options_, .shape = sim::Node::shape(), .pages = {}, .tables = {}};
    const std::span<std::byte> bytes = node_.catalog_bytes();
    Page page{};
    for (std::uint64_t offset = 0; offset < bytes.size(); offset += page.size()) {
      const auto here = bytes.subspan(offset, page.size());
      if (std::ranges::all_of(here, [](std::byte byte) { return byte == std::byte{0}; })) continue;
      std::ranges::copy(here, page.begin());
      image.pages.emplace_back(offset, page);
    }
    for (const engine::Survivor& survivor : node_.survivors()) {
      CatalogImage::Table table{survivor.session, survivor.completions, {}};
      for (const auto& client : node_.clients) {
        if (client->id != survivor.session) continue;
        table.slots.resize(client->slots.size());
        for (std::size_t i = 0; i < client->slots.size(); ++i)
          std::memcpy(table.slots[i].data(), &client->slots[i], sizeof(shm::TableSlot));
      }
      image.tables.push_back(std::move(table));
    }
    return image;
  }

  Random random_;
  engine::Options options_;
  sim::Node node_;
  std::vector<std::uint32_t> places_;
  std::vector<Trainer> trainers_;
  std::map<RequestId, Asked> asked_;
  std::uint64_t named_ = 0;
};

}  // namespace

std::vector<CatalogImage> make_catalog_images() {
  std::vector<CatalogImage> images;
  for (std::uint64_t seed = 0; seed < kImages; ++seed) images.push_back(EndingNode(seed).run());
  return images;
}

}  // namespace terrace::fuzz
