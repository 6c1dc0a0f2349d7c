// SPDX-License-Identifier: Apache-2.0
// One way in which this process sees a seam: pages of a place's segments, mapped once more side by side.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "gpu.h"
#include "host_pins.h"
#include "terrace/error.h"

namespace terrace::client {

class SeamView {
 public:
  // Address space for it. ResourceExhausted: there is none.
  static Result<std::unique_ptr<SeamView>> reserve(std::uint64_t bytes);
  SeamView(const SeamView&) = delete;
  SeamView& operator=(const SeamView&) = delete;
  ~SeamView();

  // Maps what lies at `segment`, within one segment's mapping, once more at this offset of the seam, with the same
  // protection. One thread at a time. ResourceExhausted: the system has no more mappings.
  Result<void> show(std::uint64_t at, std::byte* segment, std::uint64_t bytes);
  // Of a leased tensor that lies there. Pins it first, where there is a GPU that pins. Thread-safe.
  std::byte* address(const std::shared_ptr<Gpu>& gpu, bool read_only);

 private:
  SeamView(std::byte* memory, std::uint64_t bytes) : memory_(memory), bytes_(bytes) {}

  std::byte* const memory_;
  const std::uint64_t bytes_;
  HostPins pins_;
};

}  // namespace terrace::client
