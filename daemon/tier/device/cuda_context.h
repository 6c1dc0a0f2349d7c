// SPDX-License-Identifier: Apache-2.0
// One GPU as this process has it: its primary context, kept while anybody uses it, and whether it still works.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "cuda/driver.h"
#include "terrace/error.h"

namespace terrace::tier {

class CudaContext {
 public:
  struct Room {
    std::uint64_t free_bytes = 0;
    std::uint64_t total_bytes = 0;
  };

  // kFailedPrecondition where there is no such device, or one that cannot export memory as descriptors. Its threads
  // sleep while they wait, instead of spinning.
  static Result<std::shared_ptr<CudaContext>> open(const cuda::Api& api, int ordinal);
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  // All thread-safe.
  const cuda::Api& api() const { return api_; }
  cuda::Context context() const { return context_; }
  int ordinal() const { return ordinal_; }
  cuda::Device device() const { return device_; }
  const std::string& name() const { return name_; }              // "NVIDIA H100 80GB HBM3"
  const std::string& pci_bus_id() const { return pci_bus_id_; }  // "0000:3b:00.0"
  const cuda::Uuid& uuid() const { return uuid_; }               // the same in every process, whatever it numbers first
  Result<Room> room() const;
  // What making the context took of the device's memory; 0: not known. Whatever else came or went meanwhile is in it.
  std::uint64_t own_bytes() const { return own_bytes_; }

  // Passes a result on; one that says that the device is lost, or that the driver does not know what it has, is kept,
  // with the device's name before it.
  Result<void> noted(Result<void> result);
  // The device is of no more use from now on, for this reason.
  void give_up(const Error& why);
  // Why the device is of no more use, for good; none while it is. kUnavailable, whatever it came from.
  std::optional<Error> lost() const;
  // The same with the code of what it came from: kDataLoss where the driver says that the device is lost.
  std::optional<Error> cause() const;

 private:
  CudaContext(const cuda::Api& api, int ordinal) : api_(api), ordinal_(ordinal) {}
  Result<void> look();
  void keep(const Error& why);
  Result<void> require(int attribute, const char* what) const;

  const cuda::Api& api_;
  const int ordinal_;
  cuda::Device device_ = 0;
  cuda::Context context_ = nullptr;
  std::string name_;
  std::string pci_bus_id_;
  cuda::Uuid uuid_{};
  std::uint64_t own_bytes_ = 0;
  std::atomic<bool> is_lost_ = false;
  mutable std::mutex mutex_;  // guards why_lost_
  std::optional<Error> why_lost_;
};

}  // namespace terrace::tier
