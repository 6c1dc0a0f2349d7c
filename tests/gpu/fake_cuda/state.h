// SPDX-License-Identifier: Apache-2.0
// What the fake driver keeps in a process: contexts, memory and its mappings, streams with a thread each, events.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "cuda/abi.h"
#include "gpu/fake_cuda/control.h"

namespace terrace::fake_cuda {

Control& control();

// Counts the call; the status with which it is to fail, if it is.
cuda::Status begin(Call call);
bool strikes(Fault& fault, cuda::Status& status);

// Memory of a device: a memfd, reachable by the CPU through `shadow` alone, which only the fake knows.
struct Memory {
  int fd = -1;
  int device = 0;
  std::size_t bytes = 0;
  bool counted = false;
  std::byte* shadow = nullptr;

  static std::shared_ptr<Memory> create(int device, std::size_t bytes);
  static std::shared_ptr<Memory> import(int fd);
  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory();
};

class StreamState;

struct EventState {
  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t recorded = 0;
  std::uint64_t reached = 0;
  cuda::Status status = cuda::kSuccess;
  int device = 0;
  bool captured = false;                // recorded last in a stream that was being captured
  const StreamState* stream = nullptr;  // recorded last in this one, which may be gone
};

// Tasks in order: each on the stream's thread, or, where streams take turns (turns.h), when its turn has come.
class StreamState {
 public:
  explicit StreamState(cuda::Context context);
  ~StreamState();
  StreamState(const StreamState&) = delete;
  StreamState& operator=(const StreamState&) = delete;

  // `task` is given whether it runs at all; what it returns sticks to the stream until the next event has it.
  void push(std::function<cuda::Status(cuda::Status before)> task);
  // What is pushed from now on runs once the event is reached as it was recorded last.
  void await(std::shared_ptr<EventState> event);
  void record(const std::shared_ptr<EventState>& event);
  // Until all that was pushed has run.
  void drain();
  bool drained() const;
  cuda::Context context() const { return context_; }
  // What is pushed meanwhile goes into a graph, and does not run.
  std::atomic<bool> capturing = false;

  // For who gives the turns: whether the first task may run now, which event it awaits (null: none), and running it.
  bool is_ready() const;
  std::shared_ptr<EventState> awaited() const;
  void run_first();

 private:
  struct Task {
    std::function<cuda::Status(cuda::Status)> run;
    std::shared_ptr<EventState> awaited;  // null: nothing is
    std::uint64_t number = 0;             // of the recording that is awaited
  };
  bool reached(const Task& task) const;
  bool held() const;
  void add(Task task);
  void work();

  cuda::Context context_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  bool busy_ = false;
  bool stop_ = false;
  cuda::Status status_ = cuda::kSuccess;
  std::thread thread_;  // none, where streams take turns
};

// Waits until an event is reached as it was recorded last, or its device is lost; gives its status.
cuda::Status wait_for(EventState& event);
// kNotReady before it is reached. Under its mutex.
cuda::Status status_of(const EventState& event);

// CUmemAccess_flags beside cuda::kAccessReadWrite.
inline constexpr int kNoAccess = 0;
inline constexpr int kReadAccess = 1;

struct Mapping {
  std::shared_ptr<Memory> memory;
  std::size_t bytes = 0;
  int access = kNoAccess;  // of its own device
};

struct Capture {
  StreamState* stream = nullptr;
  std::thread::id thread;
  cuda::CaptureMode mode = cuda::kCaptureGlobal;
  bool broken = false;
};

struct State {
  std::mutex mutex;  // guards all below
  bool initialized = false;
  std::set<int> given;          // devices that cuDeviceGet gave: they stay valid in this process
  std::map<int, int> retained;  // by device
  std::map<cuda::Allocation, std::shared_ptr<Memory>> handles;
  cuda::Allocation last_handle = 0;
  std::map<cuda::Pointer, std::size_t> ranges;
  std::map<cuda::Pointer, Mapping> mappings;
  std::map<cuda::Pointer, std::size_t> allocations;             // of cuMemAlloc
  std::map<const std::byte*, std::size_t> registered;           // host memory
  std::map<int, std::unique_ptr<StreamState>> default_streams;  // by device
  std::vector<Capture> captures;
  std::map<int, cuda::Status> broken;  // by device: what a kernel has ended this process's context with
  // By thread; the others' is the global one. Not thread-local: LeakSanitizer stumbles over those of loaded libraries.
  std::map<std::thread::id, cuda::CaptureMode> capture_modes;
};
State& state();

// The calling thread's, see cuThreadExchangeStreamCaptureMode; gives the one before.
cuda::CaptureMode exchange_capture_mode(cuda::CaptureMode mode);
// Of a call that is prohibited while a graph is captured: unless the thread's mode allows it, it is refused, and those
// captures are broken.
cuda::Status prohibited();

// The devices that this process may see ($CUDA_VISIBLE_DEVICES), by their numbers on the machine.
std::size_t capacity_of(int device);
int visible_count();
int physical(int ordinal);
bool is_visible(int device);

// Contexts are numbers that no pointer has.
cuda::Context context_of(int device);
int device_of(cuda::Context context);
cuda::Context current();
StreamState* stream_of(cuda::Stream stream);

// Where kernels of a test read and write what a device has at an address; null where no range has it.
std::byte* mirror_of(cuda::Pointer address);
// The device that has memory at an address, by its number on the machine.
std::optional<int> device_at(cuda::Pointer address);
// What ended this process's context on a device, or lost the device; kSuccess: nothing.
cuda::Status broken(int device);

// The memory behind `bytes` at `address`, in pieces. False where not all of it is mapped with that access.
bool pieces(cuda::Pointer address, std::size_t bytes, int access,
            const std::function<void(std::byte*, std::size_t)>& visit);

enum class Pinning { kNone, kWhole, kBroken };
// Whether host memory is registered; kBroken: in part, or by more than one registration, which no copy may cross.
Pinning pinning(const void* address, std::size_t bytes);

}  // namespace terrace::fake_cuda
