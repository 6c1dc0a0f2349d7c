// SPDX-License-Identifier: Apache-2.0
#include "cuda/driver.h"

#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

namespace terrace::cuda {
namespace {

using ErrorName = Status (*)(Status, const char**);

// A code has the same name in every driver.
std::atomic<ErrorName>& error_namer() {
  static std::atomic<ErrorName> namer{nullptr};
  return namer;
}

ErrorCode code_of(Status status) {
  switch (status) {
    case kOutOfMemory:
    case kDeviceUnavailable:
    case kSystemNotReady:
      return ErrorCode::kResourceExhausted;
    case kNotPermitted:
      return ErrorCode::kPermissionDenied;
    case kNotInitialized:
    case kStubLibrary:
    case kRequiresNewerDriver:
    case kNoDevice:
    case kInvalidDevice:
    case kNotSupported:
    case kCompatNotSupportedOnDevice:
      return ErrorCode::kFailedPrecondition;
    case kSystemDriverMismatch:
    case kUnknown:
      return ErrorCode::kUnavailable;
    default:
      return is_lost(status) ? ErrorCode::kDataLoss : ErrorCode::kInternal;
  }
}

struct Library {
  Symbols symbols;
  Api api;
  explicit Library(void* handle) : symbols(handle), api(symbols) {}
};

// Never destroyed: threads end after static destructors have run.
struct Libraries {
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<Library>> by_path;
};

Libraries& libraries() {
  static auto* const the = new Libraries;
  return *the;
}

Result<const Api*> open(const std::string& path, int how) {
  const std::lock_guard lock(libraries().mutex);
  auto& known = libraries().by_path[path];
  if (known != nullptr) return &known->api;
  void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | how);
  if (handle == nullptr) {
    const char* why = ::dlerror();
    return fail(ErrorCode::kFailedPrecondition, "no CUDA driver: " + std::string(why != nullptr ? why : path));
  }
  auto library = std::make_unique<Library>(handle);
  if (library->symbols.missing() != nullptr) {
    return fail(ErrorCode::kFailedPrecondition, "the CUDA driver " + path + " has no " + library->symbols.missing() +
                                                    ": install one of CUDA 12 or later");
  }
  error_namer() = reinterpret_cast<ErrorName>(library->symbols.find("cuGetErrorName"));
  if (Result<void> ready = library->api.init(0); !ready) return std::unexpected(std::move(ready.error()));
  known = std::move(library);
  return &known->api;
}

}  // namespace

bool is_lost(Status status) {
  switch (status) {
    case kDeinitialized:
    case kEccUncorrectable:
    case kNvlinkUncorrectable:
    case kContained:
    case kIllegalAddress:
    case kLaunchTimeout:
    case kContextIsDestroyed:
    case kAssert:
    case kExternalDevice:
      return true;
    default:
      return status >= kHardwareStackError && status <= kLaunchFailed;
  }
}

Error error_of(const char* call, Status status) {
  std::string_view plain(call);
  if (plain.ends_with("_v2")) plain.remove_suffix(3);
  const char* name = nullptr;
  const ErrorName namer = error_namer().load();
  if (namer == nullptr || namer(status, &name) != kSuccess || name == nullptr) name = "CUDA error";
  return {code_of(status), std::string(plain) + ": " + name + " (" + std::to_string(status) + ")", 0};
}

void* Symbols::find(const char* name) {
  void* found = ::dlsym(library_, name);
  if (found == nullptr && missing_ == nullptr) missing_ = name;
  return found;
}

std::string library_path() {
  const char* chosen = std::getenv("TERRACE_CUDA_LIBRARY");
  return chosen != nullptr && *chosen != '\0' ? chosen : "libcuda.so.1";
}

Result<const Api*> load(const std::string& path) { return open(path, 0); }

const Api* loaded(const std::string& path) {
  const Result<const Api*> found = open(path, RTLD_NOLOAD);
  return found ? *found : nullptr;
}

Current::Current(const Api& api, Context context) : api_(api), result_(api.context_push(context)) {}

Current::~Current() {
  Context popped = nullptr;
  if (result_) static_cast<void>(api_.context_pop.status(&popped));
}

Relaxed::Relaxed(const Api& api) : api_(api) { static_cast<void>(api_.exchange_capture_mode.status(&mode_)); }

Relaxed::~Relaxed() { static_cast<void>(api_.exchange_capture_mode.status(&mode_)); }

}  // namespace terrace::cuda
