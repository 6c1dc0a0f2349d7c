// SPDX-License-Identifier: Apache-2.0
// Random trainers on a node, beside a model that knows what every answer may be: they open, create, lease in their
// tables and through the engine, miss deadlines, stop, scribble, close and die; devices fail, hang and lie; the
// daemon's process ends between any two stores of its catalog. All of it drawn from a seed, an event at a time.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/random.h"
#include "sim/node.h"

namespace terrace::sim {

struct WorldOptions {
  std::uint64_t seed = 0;
  engine::Options engine;
  bool restarts = true;           // the daemon's process ends now and then, and has a successor
  bool faults = true;             // devices fail, hang and lie; trainers stop and scribble
  std::ostream* trace = nullptr;  // a line an action
};

// Tiers of different kinds and sizes, by seed.
engine::Options tiers_by_seed(std::uint64_t seed);

struct Counts {
  std::uint64_t deaths = 0;    // of trainers
  std::uint64_t restarts = 0;  // of the daemon
  std::uint64_t faults = 0;
  std::uint64_t granted = 0;  // leases
  std::uint64_t refused = 0;  // sets that were to be brought somewhere
};

class World {
 public:
  explicit World(WorldOptions options);

  // What happens as this event follows from its number, the seed and the state. Violation: a law did not hold.
  void event(std::uint64_t number);
  // Nothing leased or pinned, everything that is under way done: then nothing of an open session waits, a set within a
  // floor is granted, and every byte is what was written last.
  void calm();
  // Everybody leaves, and nothing remains.
  void finish();

  // Of all answers and leases so far.
  std::uint64_t digest() const { return digest_; }
  const Counts& counts() const { return counts_; }

 private:
  struct Lease {
    Handle handle;
    shm::Mode mode{};
  };
  struct Tensor {
    Handle handle;
    std::string name;
    std::uint64_t bytes = 0;
    std::uint64_t number = 0;  // the engine's, which transfers carry
    bool written = false;
    bool may_be_lost = false;
    bool torn = false;              // since its last overwrite was given up
    bool torn_beside = false;       // torn while another lease was asked for, which may have been granted before
    bool may_be_torn = false;       // an overwrite was granted and undone, and is asked for again
    bool may_be_zeros = false;      // a write lease was granted and undone: its zeros may count as content
    bool may_be_forgotten = false;  // given up by a request that nobody answered, and that was refused when asked again
    std::uint64_t value = 0;
  };
  // Of a session, or of a share: then of all who have a part in it.
  struct Content {
    std::vector<Tensor> tensors;
  };
  struct Trainer {
    Node::Client* client = nullptr;
    std::unique_ptr<Node::Client> opening;
    std::vector<engine::PlaceOffer> offers;
    std::shared_ptr<Content> content = std::make_shared<Content>();
    bool in_share = false;
    bool writes = true;
    std::vector<Lease> leases;
    std::vector<Handle> pinned;
    Time stopped_until{};  // SIGSTOP
    bool ending = false;
    bool open() const { return client != nullptr && !ending; }
    bool sane() const { return open() && !client->scribbles; }
  };
  struct Asked {
    std::size_t trainer = 0;
    engine::Body body;
  };
  struct Death {};  // of the daemon's process, thrown through it

  // world.cc: what trainers do
  void act();
  void send(std::size_t trainer, engine::Body body, Time deadline);
  void open(std::size_t index);
  void end(std::size_t index);
  void create(std::size_t index);
  void foresee(const Trainer& trainer);
  void declare(std::size_t index);
  void unpin(std::size_t index);
  void fast_lease(std::size_t index);
  Tensor* take_in_table(std::size_t index);
  bool is_asked_for(std::size_t index, Handle handle, bool to_write) const;
  void release(std::size_t index);
  Lease take_lease(std::size_t index);
  bool release_in_table(std::size_t index, Lease lease);
  void bereave(Trainer& trainer);
  void leased(Trainer& trainer, Tensor& tensor, shm::Mode mode);
  void check_alone(const Trainer& trainer, const Tensor& tensor, shm::Mode mode) const;
  void fill(Trainer& trainer, Tensor& tensor);
  static Tensor* find(Trainer& trainer, Handle handle);
  std::vector<Handle> some_tensors(const Trainer& trainer, std::size_t most = 4);
  std::uint32_t place() { return places_[random_.below(places_.size())]; }
  engine::Modes some_modes(std::size_t tensors);
  Time deadline();
  void say(const std::string& what) const;

  // replies.cc: what they may be told
  void take_replies();
  std::uint64_t number_of(const Node::Client& client, Handle handle);
  template <typename T>
  void replied(std::size_t index, const T& body, const Result<engine::ReplyBody>& result);
  void replied(std::size_t index, const engine::OpenSession& body, const Result<engine::ReplyBody>& result);
  void replied(std::size_t index, const engine::CloseSession& body, const Result<engine::ReplyBody>& result);
  void replied(std::size_t index, const engine::CreateTensors& body, const Result<engine::ReplyBody>& result);
  void replied(std::size_t index, const engine::Acquire& body, const Result<engine::ReplyBody>& result);
  void replied(std::size_t index, const engine::Move& body, const Result<engine::ReplyBody>& result);
  void replied(std::size_t index, const engine::Pin& body, const Result<engine::ReplyBody>& result);
  void replied(std::size_t index, const engine::DontNeed& body, const Result<engine::ReplyBody>& result);
  void replied(std::size_t index, const engine::DeleteTensors& body, const Result<engine::ReplyBody>& result);
  void check_refusal(Trainer& trainer, const std::vector<Handle>& set, const engine::Modes& modes, const Error& error);
  void check_given_up(const Trainer& trainer) const;
  void check_floor(std::size_t index);
  void check_guarantee(std::size_t index);
  void check_bytes(Trainer& trainer);

  // faults.cc: what goes wrong
  void complete_something();
  void complete_order();
  void complete_transfer();
  void fail_transfer(std::size_t at);
  void misfortune();
  void scribble(Trainer& trainer);
  void harm(std::uint64_t tensor_number);
  void harm_all();
  // Whether what the trainer leases, and its bytes with it, goes with memory of a device when nobody leases it.
  bool is_leased_in_vain(const Trainer& trainer, Handle handle) const;
  bool may_lose_gpu() const;
  void fail_gpu();
  std::vector<engine::LostSegment> lose_segments();
  void arm();
  void meanwhile();
  void restart();
  void former();
  void check_counts(const Trainer& trainer) const;
  void ask_again(std::size_t index, engine::Body body);

  // disk_faults.cc: a disk that fails as a whole for a time
  void break_disk(std::uint64_t number);
  bool fails_by_disk(std::size_t at);
  void mend_disk();

  WorldOptions options_;
  Random random_{0};
  Node node_;
  std::vector<Trainer> trainers_;
  std::map<std::string, std::shared_ptr<Content>> shares_;  // as they were last created
  std::vector<std::uint32_t> places_;
  bool has_block_ = false;
  bool faults_ = false;          // not while it is calm
  bool gpu_failed_ = false;      // device:0's
  std::set<SessionId> lacking_;  // spaces that lost a segment there
  std::map<RequestId, Asked> asked_;
  Time disk_fails_until_{};
  std::size_t disk_fault_ = 0;          // which one it has until then
  std::map<TransferId, Time> hanging_;  // not done before that
  std::vector<std::size_t> dying_;      // trainers whose sessions are not gone yet
  std::vector<std::size_t> doorbells_;  // rung while the engine was at work
  std::uint64_t named_ = 0;
  std::uint64_t values_ = 0;
  std::uint64_t digest_ = 0;
  Counts counts_;
};

}  // namespace terrace::sim
