// SPDX-License-Identifier: Apache-2.0
// A lease as Python holds it: shared by the Lease object and by every array and tensor that was made from it.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "terrace/client.h"

namespace terrace::python {

// Bytes that one client's leases hold. Outlives the client, as leases do.
class LeasedBytes {
 public:
  void add(std::uint64_t bytes) {
    const std::uint64_t total = now_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    std::uint64_t seen = max_.load(std::memory_order_relaxed);
    while (seen < total && !max_.compare_exchange_weak(seen, total, std::memory_order_relaxed)) {
    }
  }
  void subtract(std::uint64_t bytes) { now_.fetch_sub(bytes, std::memory_order_relaxed); }
  std::uint64_t now() const { return now_.load(std::memory_order_relaxed); }
  std::uint64_t max() const { return max_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> now_ = 0;
  std::atomic<std::uint64_t> max_ = 0;
};

// The right itself. Its end releases the lease, on whatever thread and without the GIL; of a GPU's memory that was
// exported, once the GPU has passed every stream that it was exported to.
class Hold {
 public:
  Hold(Lease lease, std::shared_ptr<LeasedBytes> leased);
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  ~Hold();

  const Tensor& tensor() const { return tensor_; }
  Mode mode() const { return token_.mode; }
  Place place() const { return place_; }
  const std::byte* address() const { return address_; }
  // The same; null where it may not be written.
  std::byte* writable_address() const { return writable_address_; }
  // The GPU whose memory it is, by this process's number; none: the CPU's memory.
  std::optional<int> cuda_device() const { return cuda_device_; }

  // A stream that works on the memory, as DLPack has it: 1 and 2 are the default ones. What this carries ends behind
  // it, too. The caller holds the GIL.
  void used_on(std::uintptr_t stream) const;
  // Says of an overwrite that it is given up; the lease goes on until the last part of it is gone.
  void tear() const { tear_token(token_); }
  // Another lease goes on for as long as this one does, and ends behind the same streams. The caller holds the GIL.
  void carry(std::shared_ptr<const Hold> other) const;
  // Keeps this part of it until the GPU has passed what lies in the stream now. Of the last part, also what lies in
  // every stream that works on the memory: what was exported marks those itself when it ends. The caller holds the GIL.
  static Result<void> keep_past(const std::shared_ptr<const Hold>& part, std::uintptr_t stream);

 private:
  Tensor tensor_;
  Place place_;
  const std::byte* address_;
  std::byte* writable_address_;
  std::shared_ptr<LeasedBytes> leased_;
  std::optional<int> cuda_device_;
  mutable std::vector<void*> streams_;  // each once
  LeaseToken token_;
  mutable std::vector<std::shared_ptr<const Hold>> carried_;
};

// The Python object `terrace.Lease`.
class HeldLease {
 public:
  // How it was had.
  struct Way {
    bool waited = false;   // for the daemon, for this tensor or another of the set
    bool fetched = false;  // this one was not there, and its bytes were needed
  };

  HeldLease(std::shared_ptr<const Hold> hold, Way way)
      : tensor_(hold->tensor()), hold_(std::move(hold)), shown_(hold_), way_(way) {}

  const Tensor& tensor() const { return tensor_; }
  bool released() const { return hold_ == nullptr; }
  bool waited() const { return way_.waited; }
  bool fetched() const { return way_.fetched; }
  // The lease; raises FailedPrecondition once it was released.
  const std::shared_ptr<const Hold>& hold() const;
  // Gives up this object's part: the lease ends with the last export.
  void release() { hold_.reset(); }
  // Whether anything holds a part of the lease: this object, or what was exported.
  bool shown() const { return !shown_.expired(); }
  // Takes a part of the lease again, if it goes on. Whether it does.
  bool resume();
  // Lets another lease go on for as long as this one does, and gives up that object's part of it.
  void carry(HeldLease& other);
  // Copies bytes of the CPU's memory to the begin of the leased ones, past the caches; raises where they do not fit,
  // may not be written, or are a GPU's.
  void copy_in(const std::byte* from, std::size_t size) const;
  // As release(); an overwrite leaves no content, whatever is still exported.
  void abandon();
  // As release(), but this object's part goes once the GPU has passed what lies in the stream now.
  void release_past(std::uintptr_t stream);

 private:
  Tensor tensor_;
  std::shared_ptr<const Hold> hold_;
  std::weak_ptr<const Hold> shown_;
  Way way_;
};

// As numpy and PyTorch spell it.
const char* dtype_name(DType dtype);

void bind_lease(nanobind::module_& module);

}  // namespace terrace::python
