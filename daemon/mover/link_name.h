// SPDX-License-Identifier: Apache-2.0
// What links are called in status and in metrics.
#pragma once

#include <string>

#include "mover/transfer.h"

namespace terrace::mover {

// "host_to_device:0", "device_to_host:0", "block_read", "block_write", "memcpy".
inline std::string name(Link link) {
  switch (link.kind) {
    case LinkKind::kHostToDevice:
      return "host_to_device:" + std::to_string(link.unit);
    case LinkKind::kDeviceToHost:
      return "device_to_host:" + std::to_string(link.unit);
    case LinkKind::kBlockRead:
      return "block_read";
    case LinkKind::kBlockWrite:
      return "block_write";
    case LinkKind::kMemcpy:
      return "memcpy";
  }
  return "unknown";
}

}  // namespace terrace::mover
