// SPDX-License-Identifier: Apache-2.0
// The handle on the fake CUDA driver: what it was asked, and what it is to get wrong. One block of memory, in the
// process alone or (where $TERRACE_FAKE_CUDA_CONTROL names a file of this size) shared by all that run on the fake.
// All zeros is a driver with one device that gets nothing wrong.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace terrace::fake_cuda {

inline constexpr std::size_t kDevicesMax = 8;
inline constexpr std::uint64_t kDeviceBytes = std::uint64_t{1} << 30;  // where Control says nothing
inline constexpr std::uint64_t kContextBytes = 123 << 20;              // what the management library says of one

enum class Call : std::uint32_t {
  kInit,
  kRetain,
  kCreate,
  kExport,
  kImport,
  kReserve,
  kUnreserve,
  kMap,
  kUnmap,
  kSetAccess,
  kHostRegister,
  kHostUnregister,
  kStreamCreate,
  kCopyUp,
  kCopyDown,
  kCopyWithin,
  kSet,
  kEventRecord,
  kEventSynchronize,
  kEventQuery,
  kCount,
};

// A call that fails: `times` of them, after `after` that go well, with `status`. Set status last.
struct Fault {
  std::atomic<std::int32_t> status;
  std::atomic<std::int32_t> after;
  std::atomic<std::int32_t> times;
};

struct Control {
  std::atomic<std::uint32_t> device_count;  // 0: one; kDevicesMax + 1: none
  std::atomic<std::uint32_t> absent;        // a bit a device: it fell off the bus, and those after it move up
  std::atomic<std::uint64_t> device_bytes;  // of each; 0: kDeviceBytes
  std::array<std::atomic<std::uint64_t>, static_cast<std::size_t>(Call::kCount)> calls;
  std::array<Fault, static_cast<std::size_t>(Call::kCount)> faults;
  Fault copies;                                             // copies that were accepted, and fail while they run
  std::atomic<std::uint32_t> hold;                          // a bit a device: its streams stand still, events are late
  std::array<std::atomic<std::int32_t>, kDevicesMax> lost;  // not 0: the status of every call about the device
  std::array<std::atomic<std::uint64_t>, kDevicesMax> used_bytes;
  std::atomic<std::uint64_t> copied_up_bytes;
  std::atomic<std::uint64_t> copied_down_bytes;
  std::atomic<std::uint64_t> pageable_copies;   // between a device and memory that was not registered
  std::atomic<std::uint64_t> registered_bytes;  // now
  std::atomic<std::uint32_t> streams;           // now
  std::atomic<std::uint32_t> mappings;          // now, in address ranges
  std::atomic<std::uint32_t> hold_registering;  // not 0: registrations of the host's memory stand still
  std::atomic<std::uint32_t> registering;       // now: what does
  std::atomic<std::uint32_t> reversed;          // not 0: the last device is the first
  std::atomic<std::uint32_t> halved;            // a bit a device: it has half of device_bytes
};

inline std::uint64_t count(const Control& control, Call call) {
  return control.calls[static_cast<std::size_t>(call)].load();
}

inline void set(Fault& fault, std::int32_t status, std::int32_t times = 1, std::int32_t after = 0) {
  fault.after = after;
  fault.times = times;
  fault.status = status;
}
inline void set_fault(Control& control, Call call, std::int32_t status, std::int32_t times = 1,
                      std::int32_t after = 0) {
  set(control.faults[static_cast<std::size_t>(call)], status, times, after);
}

}  // namespace terrace::fake_cuda

// Exported by the fake beside the driver's entry points.
extern "C" terrace::fake_cuda::Control* terrace_fake_cuda_control();
