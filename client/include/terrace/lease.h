// SPDX-License-Identifier: Apache-2.0
// A lease: the right to a tensor's bytes at an address, until it is released.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>

#include "terrace/error.h"
#include "terrace/tensor.h"

namespace terrace {

// What is left of a lease whose owner is not C++: a plain value for a deleter (of DLPack, of a numpy array). Exactly
// one release_token() per token.
struct LeaseToken {
  client::Session* session = nullptr;  // null: nothing to release
  std::uint64_t handle = 0;
  Mode mode = Mode::kRead;
};
static_assert(std::is_trivially_copyable_v<LeaseToken>);

// Ends the lease. From any thread, at any time: also after the Client is gone, at interpreter exit, and in a forked
// child (where it does nothing). Takes no lock and never blocks.
void release_token(LeaseToken token) noexcept;
// The same for a lease of a GPU's memory, once the GPU has passed what lies in `cuda_streams` about now (CUstreams;
// null: the default stream of the lease's GPU; of a thread's own default stream, which CUDA calls 2, what lies in any
// thread's is waited for): for deleters of what streams may still be using. Takes no lock, never blocks and calls no
// CUDA; a thread of the library's own does. The streams must outlive this by a moment. For host memory it is
// release_token(token).
void release_token(LeaseToken token, Place place, std::span<void* const> cuda_streams) noexcept;

// Says of an overwrite that it is given up: as Lease::abandon(), but the token is still owed, so that what was exported
// keeps its memory. Nothing for leases of other modes. Takes no lock and never blocks.
void tear_token(LeaseToken token) noexcept;

// For a lease whose token several share: keeps `part`, which one of them holds, until the GPU has passed what was put
// into `cuda_streams` before this call, and drops it then, on a thread of the library's own. Does not wait. Errors as
// Lease::release(cuda_stream); then it was not kept.
Result<void> keep_past(const LeaseToken& token, Place place, std::span<void* const> cuda_streams,
                       std::shared_ptr<const void> part);

// Move-only. While it lives the bytes stay where they are, and the memory stays mapped, also after the Client is gone.
// The destructor releases, also while an exception passes: what an overwrite leaves half written is to be abandoned
// before. Different threads may use different leases; one lease is one thread's at a time.
class Lease {
 public:
  Lease() = default;  // of nothing
  Lease(Lease&& other) noexcept;
  Lease& operator=(Lease&& other) noexcept;
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  ~Lease();

  // The tensor's bytes to read; empty once released. Where cuda_device() says so the addresses are a GPU's: for its
  // kernels and copies, and not for the CPU.
  std::span<const std::byte> bytes() const { return {address_, bytes_}; }
  // The same to write; empty unless the mode is a writing one, or the lease asked for a writable view.
  std::span<std::byte> writable_bytes() const { return {writable_ ? address_ : nullptr, writable_ ? bytes_ : 0}; }
  // The bytes as elements: span<const float>() under any mode, span<float>() under a writing one (empty otherwise).
  // Empty, too, where the tensor's bytes are not a whole number of T, or T is not what `dtype` is made of in size.
  template <typename T>
  std::span<T> span() const {
    static_assert(std::is_trivially_copyable_v<T>);
    if (bytes_ % sizeof(T) != 0 || (!std::is_const_v<T> && !writable_)) return {};
    if (sizeof(T) != 1 && sizeof(T) != element_bytes(tensor_.dtype())) return {};
    return {reinterpret_cast<T*>(address_), bytes_ / sizeof(T)};
  }

  const Tensor& tensor() const { return tensor_; }
  Mode mode() const { return token_.mode; }
  Place place() const { return place_; }
  // Whether writable_bytes() has them.
  bool writable() const { return writable_; }
  // The number that this process's CUDA knows the GPU by whose memory it is; none: the CPU's memory.
  std::optional<int> cuda_device() const { return cuda_device_; }
  explicit operator bool() const { return token_.session != nullptr; }

  // Gives the lease back now. kFailedPrecondition if that was done already, or in a forked child; kInternal if the
  // shared table says that nothing was leased (somebody wrote there).
  Result<void> release();

  // Gives the lease back, and an overwrite up: what it left in place of the old bytes is no content, and to read it (or
  // write into it) is kFailedPrecondition "torn" until it is overwritten. A lease of another mode ends as by release():
  // a write leaves the old bytes with the new ones among them. Of a set, each lease. Errors as release(). Never blocks.
  Result<void> abandon();

  // Gives the lease back once the GPU has passed what was put into `cuda_stream` (a CUstream or cudaStream_t; null: the
  // default stream of the lease's GPU) before this call; does not wait for that. Also for host memory that the stream
  // copies from or to; there null is the default stream of the GPU that is current to the calling thread.
  // kFailedPrecondition where no CUDA driver is loaded, or a graph is captured of the stream; the driver's own error;
  // then the lease is still held.
  Result<void> release(void* cuda_stream);

  // Lets go without releasing: the caller owes one release_token(). Address and bytes are to be read before.
  LeaseToken detach() noexcept;

 private:
  friend class client::Session;
  Result<void> releasable() const;
  Tensor tensor_;
  LeaseToken token_;
  Place place_ = Place::host();
  bool writable_ = false;
  std::byte* address_ = nullptr;
  std::size_t bytes_ = 0;
  std::optional<int> cuda_device_;
};

}  // namespace terrace
