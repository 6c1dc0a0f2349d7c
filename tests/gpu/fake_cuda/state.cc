// SPDX-License-Identifier: Apache-2.0
#include "gpu/fake_cuda/state.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace terrace::fake_cuda {
namespace {

// What fresh memory of a device holds: never zeros, so that nobody takes them for granted.
constexpr int kGarbage = 0xA5;

Control* map_control() {
  const char* path = std::getenv("TERRACE_FAKE_CUDA_CONTROL");
  const int fd = path != nullptr ? ::open(path, O_RDWR | O_CLOEXEC) : -1;
  const int flags = fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
  void* memory = ::mmap(nullptr, sizeof(Control), PROT_READ | PROT_WRITE, flags, fd, 0);
  if (memory == MAP_FAILED || (path != nullptr && fd < 0)) {
    std::perror("the fake CUDA driver's control file");
    std::abort();
  }
  return static_cast<Control*>(memory);
}

// The process that made memory; a child of its own has made none.
pid_t& maker() {
  static pid_t value = 0;
  return value;
}

}  // namespace

Control& control() {
  static Control* const the = map_control();
  return *the;
}

bool strikes(Fault& fault, cuda::Status& status) {
  const int wanted = fault.status.load();
  if (wanted == 0) return false;
  if (fault.after.load() > 0 && fault.after.fetch_sub(1) > 0) return false;
  if (fault.times.fetch_sub(1) <= 0) {
    fault.status = 0;
    return false;
  }
  status = wanted;
  return true;
}

namespace {

// Which calls a capture prohibits the documentation does not list: these are held to be.
bool is_unsafe(Call call) {
  constexpr std::array kUnsafe = {Call::kRetain,         Call::kCreate,           Call::kImport,
                                  Call::kReserve,        Call::kUnreserve,        Call::kMap,
                                  Call::kUnmap,          Call::kSetAccess,        Call::kHostRegister,
                                  Call::kHostUnregister, Call::kEventSynchronize, Call::kEventQuery};
  return std::ranges::find(kUnsafe, call) != kUnsafe.end();
}

}  // namespace

cuda::Status broken(int device) {
  if (const int lost = control().lost[static_cast<std::size_t>(device)].load()) return lost;
  const std::lock_guard lock(state().mutex);
  const auto found = state().broken.find(device);
  return found == state().broken.end() ? cuda::kSuccess : found->second;
}

cuda::Status begin(Call call) {
  const auto index = static_cast<std::size_t>(call);
  control().calls[index].fetch_add(1);
  cuda::Status status = cuda::kSuccess;
  if (!strikes(control().faults[index], status) && is_unsafe(call)) status = prohibited();
  return status;
}

cuda::CaptureMode exchange_capture_mode(cuda::CaptureMode mode) {
  const std::lock_guard lock(state().mutex);
  const auto before = state().capture_modes.extract(std::this_thread::get_id());
  if (mode != cuda::kCaptureGlobal) state().capture_modes.emplace(std::this_thread::get_id(), mode);
  return before.empty() ? cuda::kCaptureGlobal : before.mapped();
}

cuda::Status prohibited() {
  bool any = false;
  const std::lock_guard lock(state().mutex);
  const auto found = state().capture_modes.find(std::this_thread::get_id());
  const cuda::CaptureMode mode = found == state().capture_modes.end() ? cuda::kCaptureGlobal : found->second;
  for (Capture& each : state().captures) {
    const bool own = each.thread == std::this_thread::get_id();
    const bool meets = own ? mode != cuda::kCaptureRelaxed && each.mode != cuda::kCaptureRelaxed
                           : mode == cuda::kCaptureGlobal && each.mode == cuda::kCaptureGlobal;
    each.broken = each.broken || meets;
    any = any || meets;
  }
  return any ? cuda::kStreamCaptureUnsupported : cuda::kSuccess;
}

std::shared_ptr<Memory> Memory::create(int device, std::size_t bytes) {
  const std::string name = "fake-cuda-" + std::to_string(device);  // an importer finds the device there
  auto memory = import(::memfd_create(name.c_str(), MFD_CLOEXEC));
  if (::ftruncate(memory->fd, static_cast<off_t>(bytes)) != 0) return nullptr;
  memory->device = device;
  memory->bytes = bytes;
  memory->counted = true;
  void* shadow = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory->fd, 0);
  if (shadow == MAP_FAILED) return nullptr;
  memory->shadow = static_cast<std::byte*>(shadow);
  std::memset(shadow, kGarbage, bytes);
  control().used_bytes[static_cast<std::size_t>(device)].fetch_add(bytes);
  maker() = ::getpid();
  return memory;
}

std::shared_ptr<Memory> Memory::import(int fd) {
  auto memory = std::make_shared<Memory>();
  memory->fd = fd;
  struct stat status{};
  if (fd < 0 || ::fstat(fd, &status) != 0) return nullptr;
  memory->bytes = static_cast<std::size_t>(status.st_size);
  if (memory->bytes == 0) return memory;
  void* shadow = ::mmap(nullptr, memory->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (shadow == MAP_FAILED) return nullptr;
  memory->shadow = static_cast<std::byte*>(shadow);
  std::array<char, 64> link{};
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  if (::readlink(path.c_str(), link.data(), link.size() - 1) <= 0) return nullptr;
  const char* number = std::strstr(link.data(), "fake-cuda-");
  if (number == nullptr) return nullptr;
  memory->device = number[std::strlen("fake-cuda-")] - '0';
  // Who makes memory is who pays for it, also where it holds what it made by a descriptor.
  memory->counted = maker() == ::getpid();
  if (memory->counted) control().used_bytes[static_cast<std::size_t>(memory->device)].fetch_add(memory->bytes);
  return memory;
}

Memory::~Memory() {
  if (counted) control().used_bytes[static_cast<std::size_t>(device)].fetch_sub(bytes);
  if (shadow != nullptr) ::munmap(shadow, bytes);
  if (fd >= 0) ::close(fd);
}

State& state() {
  static auto* const the = new State;
  return *the;
}

namespace {

std::vector<int> visible() {
  const std::uint32_t asked = control().device_count.load();
  const int there = asked == 0 ? 1 : asked > kDevicesMax ? 0 : static_cast<int>(asked);
  std::vector<int> devices;
  const auto add = [&](int device) {
    if (device >= 0 && device < there && (control().absent.load() >> device & 1) == 0) devices.push_back(device);
  };
  const char* text = std::getenv("CUDA_VISIBLE_DEVICES");
  if (text == nullptr)
    for (int device = 0; device < there; ++device) add(device);
  else
    for (const char* at = text; *at != '\0'; ++at) add(*at - '0');
  if (control().reversed.load() != 0) std::ranges::reverse(devices);
  return devices;
}

}  // namespace

std::size_t capacity_of(int device) {
  const std::uint64_t said = control().device_bytes.load();
  return (said == 0 ? kDeviceBytes : said) >> (control().halved.load() >> device & 1);
}

int visible_count() { return static_cast<int>(visible().size()); }
int physical(int ordinal) { return visible().at(static_cast<std::size_t>(ordinal)); }
bool is_visible(int device) {
  const std::lock_guard lock(state().mutex);
  if (state().given.contains(device)) return true;
  return std::ranges::any_of(visible(), [device](int each) { return each == device; });
}

cuda::Context context_of(int device) {
  return reinterpret_cast<cuda::Context>(static_cast<std::uintptr_t>(0x1000 + device));
}
int device_of(cuda::Context context) { return static_cast<int>(reinterpret_cast<std::uintptr_t>(context) - 0x1000); }

StreamState* stream_of(cuda::Stream stream) {
  // 1 and 2 are the default streams by the names that they have beside null.
  if (reinterpret_cast<std::uintptr_t>(stream) > 2) return reinterpret_cast<StreamState*>(stream);
  const cuda::Context context = current();
  if (context == nullptr) return nullptr;
  const std::lock_guard lock(state().mutex);
  auto& found = state().default_streams[device_of(context)];
  if (found == nullptr) found = std::make_unique<StreamState>(context);
  return found.get();
}

bool pieces(cuda::Pointer address, std::size_t bytes, int access,
            const std::function<void(std::byte*, std::size_t)>& visit) {
  const std::lock_guard lock(state().mutex);
  while (bytes > 0) {
    auto found = state().mappings.upper_bound(address);
    if (found == state().mappings.begin()) return false;
    --found;
    const std::size_t into = address - found->first;
    if (into >= found->second.bytes || (found->second.access & access) != access) return false;
    const std::size_t here = std::min(bytes, found->second.bytes - into);
    visit(found->second.memory->shadow + into, here);
    address += here;
    bytes -= here;
  }
  return true;
}

}  // namespace terrace::fake_cuda
