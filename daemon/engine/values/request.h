// SPDX-License-Identifier: Apache-2.0
// Requests and replies as values: all that any socket can ask of the engine, in one vocabulary.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "base/time.h"
#include "engine/values/lease_table.h"
#include "engine/values/status.h"
#include "shm/word.h"
#include "terrace/dtype.h"
#include "terrace/error.h"

namespace terrace::engine {

// Bytes of a place that a session may always hold leased at once (DESIGN decision 13).
struct Guarantee {
  std::uint32_t place = 0;  // shm::kPlaceHost, or shm::kPlaceDevice0 + N
  std::uint64_t bytes = 0;
};

struct TensorSpec {
  std::string name;  // 1 to 175 bytes, unique in the session
  std::uint64_t bytes = 0;
  DType dtype = DType::kUint8;
  std::vector<std::int64_t> shape;    // elements; at most 8 dimensions
  std::vector<std::int64_t> strides;  // elements; empty: contiguous, row-major
};

// How a set's tensors are leased: all alike, or each in its own way, in the set's order.
class Modes {
 public:
  Modes(shm::Mode all = shm::Mode::kRead) : all_(all) {}                         // NOLINT(google-explicit-constructor)
  Modes(std::vector<shm::Mode> each) : stated_(true), each_(std::move(each)) {}  // NOLINT(google-explicit-constructor)

  // kInvalidArgument: there are not as many as tensors.
  Result<void> fit(std::size_t tensors) const {
    if (!stated_ || each_.size() == tensors) return {};
    return fail(ErrorCode::kInvalidArgument, std::to_string(each_.size()) + " modes for " + std::to_string(tensors) +
                                                 " tensors: give one for all of them, or one for each");
  }
  shm::Mode operator[](std::size_t at) const { return stated_ ? each_[at] : all_; }
  bool write() const {
    const auto writes = [](shm::Mode mode) { return mode != shm::Mode::kRead; };
    return stated_ ? std::ranges::any_of(each_, writes) : writes(all_);
  }

 private:
  shm::Mode all_ = shm::Mode::kRead;
  bool stated_ = false;
  std::vector<shm::Mode> each_;
};

inline constexpr std::size_t kShareNameBytesMax = 63;

// Tensors that several sessions of a tenant read (DESIGN decision 3).
struct ShareAccess {
  std::string name;     // 1 to 63 bytes, unique among the tenant's shares
  bool create = false;  // kAlreadyExists if it is there; else kNotFound if it is not
  bool write = false;   // may create, write and delete its tensors; whoever creates it may
};

// Waits until the guarantees are backed by memory; -> SessionOpened. With `share`: a session that is a part in that
// share, and all that it asks for is about the share's tensors. The guarantees are the share's, and stated by whoever
// creates it; it ends with its last session.
struct OpenSession {
  Tenant tenant;
  LeaseTable table;  // lives until the engine reports the session gone
  std::vector<Guarantee> guarantees;
  std::uint32_t local_world_size = 1;
  std::int32_t pid = 0;                  // for people; 0: unknown
  std::string label;                     // for people
  std::array<std::uint8_t, 16> token{};  // kept in the catalog: what the front knows the session by
  bool maps_segments = false;            // the trainer maps what it is given: segments leave only when it says so
  std::optional<ShareAccess> share;
};
struct CloseSession {};  // -> Done, when nothing of the session is left
struct CreateTensors {
  std::vector<TensorSpec> tensors;
};  // all or none -> Handles
struct DeleteTensors {
  std::vector<Handle> tensors;
  bool again = false;  // asked before, of a daemon that died: what is gone is done
};  // the names are free at once, the bytes at the last release
struct Acquire {
  std::uint32_t place = 0;
  Modes modes;
  std::vector<Handle> tensors;
  bool passing = false;  // to read, and no use: nothing is learned from it, and no copy stays longer for it
};  // -> Located
struct Release {
  Modes modes;
  std::vector<Handle> tensors;
  bool torn = false;  // overwrites that were given up: reading them is kFailedPrecondition
};  // of leases that Acquire granted
struct Move {
  std::uint32_t place = 0;
  std::vector<Handle> tensors;
};  // swap in, swap out -> Located
struct Prefetch {
  std::uint32_t place = 0;
  std::vector<Handle> tensors;
};  // a hint
struct Evict {
  std::vector<Handle> tensors;
};  // a hint
struct DontNeed {
  std::vector<Handle> tensors;
};  // the content is gone; reading it is kFailedPrecondition
struct Pin {
  std::uint32_t place = 0;
  std::vector<Handle> tensors;
};  // -> Located
struct Unpin {
  std::vector<Handle> tensors;
  bool again = false;  // as in DeleteTensors
};
struct MarkStep {
  std::uint32_t kind = 0;
};  // 0 train, 1 accumulate, 2 eval
// What steps of a kind are going to lease, some of it at a time: sets in order, the first of them at `position`. At 0 a
// declaration begins and replaces what was declared of the kind; before the position that is next it was heard already.
struct DeclareStep {
  struct Set {
    std::uint32_t place = 0;
    shm::Mode mode = shm::Mode::kRead;
    Duration compute{};  // with it leased
    std::vector<Handle> tensors;
  };
  std::uint32_t kind = 0;
  std::uint32_t position = 0;
  std::vector<Set> sets;
};
struct ListTensors {
  std::string prefix;
  std::uint32_t first_slot = 0;               // next_slot of the page before
  std::uint64_t page_bytes_max = UINT64_MAX;  // of names and dimensions, which bounds the page
};  // -> TensorList
struct FindTensors {
  std::vector<std::string> names;
};  // all or none, in this order -> TensorList
struct GetStatus {};  // no session -> Status
struct Drain {};      // no session: no new sessions from now on

using Body =
    std::variant<OpenSession, CloseSession, CreateTensors, DeleteTensors, Acquire, Release, Move, Prefetch, Evict,
                 DontNeed, Pin, Unpin, MarkStep, DeclareStep, ListTensors, FindTensors, GetStatus, Drain>;

struct Request {
  RequestId id{};
  SessionId session{};  // ignored by OpenSession, GetStatus, Drain
  Time deadline = kNever;
  Body body;
};

// Where a tensor is, at the moment of the reply.
struct Placement {
  std::uint32_t place = 0;   // also shm::kPlaceBlock, shm::kPlaceNowhere (never written)
  std::uint64_t offset = 0;  // in the place's range; 0 on the block tier
  std::uint64_t bytes = 0;   // of the tensor
};

struct TensorInfo {
  Handle handle;
  TensorSpec spec;
  Placement placement;
  bool dirty = false;
  bool pinned = false;
  std::uint32_t readers = 0;
  std::uint32_t writers = 0;
};

struct PlaceOffer {
  std::uint32_t place = 0;
  std::uint64_t range_bytes = 0;  // address space to reserve: the tier's capacity
  std::uint64_t guarantee_bytes = 0;
};

struct Done {};
struct SessionOpened {
  SessionId session{};
  SessionId space{};  // whose segments its tensors lie in: its own, or the share's
  bool writes = true;
  std::vector<PlaceOffer> places;
};
struct Handles {
  std::vector<Handle> tensors;
};
struct Located {
  std::vector<Placement> tensors;
};
struct TensorList {
  std::vector<TensorInfo> tensors;
  std::uint32_t next_slot = 0;  // where the next page begins; 0: there is none
};

using ReplyBody = std::variant<Done, SessionOpened, Handles, Located, TensorList, Status>;

struct Reply {
  RequestId id{};
  Result<ReplyBody> result;
};

}  // namespace terrace::engine
