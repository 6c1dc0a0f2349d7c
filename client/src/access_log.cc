// SPDX-License-Identifier: Apache-2.0
#include "access_log.h"

#include <array>

#include "session.h"
#include "sessions.h"
#include "shm/log.h"

namespace terrace::client {
namespace {

// The logs that one thread has: of as many sessions as it is likely to use, given back at its end.
class ThreadLogs {
 public:
  ThreadLogs() = default;
  ThreadLogs(const ThreadLogs&) = delete;
  ThreadLogs& operator=(const ThreadLogs&) = delete;
  ~ThreadLogs() {
    for (const Borrowed& log : logs_) give_back(log);
  }

  // Its writer is empty if the session has no log left.
  shm::LogWriter& of(std::uint64_t serial, const shm::RegionView& region) {
    for (Borrowed& log : logs_) {
      if (log.serial == serial) return log.writer;
    }
    Borrowed& log = logs_[next_++ % logs_.size()];
    give_back(log);
    log = borrow(serial, region);
    return log.writer;
  }

 private:
  struct Borrowed {
    std::uint64_t serial = 0;
    std::uint32_t number = 0;
    shm::LogWriter writer;
  };

  static Borrowed borrow(std::uint64_t serial, const shm::RegionView& region) {
    for (std::uint32_t log = 0; log < shm::kLogCount; ++log) {
      if (!shm::LogWriter::borrow(region.log_index(log))) continue;
      return {.serial = serial, .number = log, .writer = {region.log_index(log), region.log_entries(log)}};
    }
    return {.serial = serial, .number = 0, .writer = {}};
  }

  static void give_back(const Borrowed& log) {
    if (!log.writer) return;
    with_session(log.serial, [&](Session& session) { session.give_back_log(log.number); });
  }

  std::array<Borrowed, 4> logs_;
  std::size_t next_ = 0;
};

}  // namespace

void log_access(std::uint64_t serial, const shm::RegionView& region, std::uint32_t slot, shm::Mode mode) {
  thread_local ThreadLogs logs;
  if (shm::LogWriter& log = logs.of(serial, region)) {
    log.append({.slot = slot, .mode = static_cast<std::uint32_t>(mode), .stamp = shm::stamp_now()});
  } else {
    region.header->unlogged.fetch_add(1, std::memory_order_relaxed);
  }
}

}  // namespace terrace::client
