// SPDX-License-Identifier: Apache-2.0
#include "bench/neighbours.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <thread>

#include "bench/counters.h"

namespace terrace::bench {
namespace {

constexpr std::chrono::milliseconds kLook{1000};
constexpr double kDaemonShareMax = 0.01;     // of one processor
constexpr double kProcessorsShareMax = 0.1;  // of all of them
constexpr double kDiskShareMax = 0.1;        // of the time in which a disk has something to do
constexpr std::size_t kNamed = 3;

// Of all processors together, so far.
struct Ticks {
  double at_work = 0;
  double all = 0;
};

struct Seen {
  std::map<pid_t, std::uint64_t> cpu_ns;
  Ticks processors;
  std::map<std::string, std::uint64_t> disk_busy_ms;
};

// The first line of /proc/stat (proc_stat(5)); what this machine's host took is neither.
Ticks processors_ticks() {
  std::string name;
  double user = 0;
  double nice = 0;
  double system = 0;
  double idle = 0;
  double io_wait = 0;
  double interrupts = 0;
  double soft_interrupts = 0;
  std::ifstream("/proc/stat") >> name >> user >> nice >> system >> idle >> io_wait >> interrupts >> soft_interrupts;
  const double at_work = user + nice + system + interrupts + soft_interrupts;
  return {at_work, at_work + idle + io_wait};
}

// What each disk has been at work, of the kernel's own counts. (The time that tasks wait for disks is no measure: with
// most kernels an idle daemon, which waits in io_uring, waits for a disk.)
std::map<std::string, std::uint64_t> disk_busy_ms() {
  constexpr int kBetween = 9;  // numbers of reads and writes, from the name to the milliseconds
  std::map<std::string, std::uint64_t> found;
  std::ifstream disks("/proc/diskstats");
  for (std::string line; std::getline(disks, line);) {
    std::istringstream fields(line);
    std::string skipped;
    std::string name;
    std::uint64_t busy_ms = 0;
    fields >> skipped >> skipped >> name;
    for (int i = 0; i < kBetween; ++i) fields >> skipped;
    std::ranges::replace(name, '/', '!');  // as it is called there
    std::error_code none;                  // a partition is not there
    if (fields >> busy_ms && std::filesystem::exists("/sys/block/" + name, none)) found[name] = busy_ms;
  }
  return found;
}

Seen look() {
  Seen seen;
  std::error_code gone;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", gone)) {
    const std::string name = entry.path().filename().string();
    pid_t pid = 0;
    if (std::from_chars(name.data(), name.data() + name.size(), pid).ec != std::errc() || pid == ::getpid()) continue;
    seen.cpu_ns[pid] = counters_of_process(pid).cpu_ns;
  }
  seen.processors = processors_ticks();
  seen.disk_busy_ms = disk_busy_ms();
  return seen;
}

std::string name_of(pid_t pid) {
  std::string name;
  std::getline(std::ifstream(fmt::format("/proc/{}/comm", pid)), name);
  return name;
}

struct Busy {
  double share;  // of one processor
  pid_t pid;
  std::string name;
};

std::vector<Busy> busiest(const Seen& before, const Seen& after, double seconds) {
  std::vector<Busy> found;
  for (const auto& [pid, cpu_ns] : after.cpu_ns) {
    const auto earlier = before.cpu_ns.find(pid);
    if (earlier == before.cpu_ns.end() || cpu_ns <= earlier->second) continue;
    found.push_back({static_cast<double>(cpu_ns - earlier->second) / 1e9 / seconds, pid, name_of(pid)});
  }
  std::ranges::sort(found, std::ranges::greater{}, &Busy::share);
  return found;
}

std::string shown(const Busy& busy) {
  return fmt::format("{} (pid {}, {:.0f} %)", busy.name, busy.pid, busy.share * 100);
}

}  // namespace

std::vector<std::string> neighbours_at_work() {
  const auto begin = std::chrono::steady_clock::now();
  const Seen before = look();
  std::this_thread::sleep_for(kLook);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const Seen after = look();
  std::vector<Busy> busy = busiest(before, after, seconds);

  std::vector<std::string> said;
  double sum = 0;
  for (const Busy& one : busy) {
    sum += one.share;
    if (one.name == "terraced" && one.share > kDaemonShareMax)
      said.push_back("another daemon is loaded: " + shown(one));
  }
  const double named_share = sum / std::max(1U, std::thread::hardware_concurrency());
  const double all = after.processors.all - before.processors.all;
  const double all_share = all > 0 ? (after.processors.at_work - before.processors.at_work) / all : 0;
  if (const double share = std::max(named_share, all_share); share > kProcessorsShareMax) {
    std::vector<std::string> named;
    for (std::size_t i = 0; i < std::min(kNamed, busy.size()); ++i) named.push_back(shown(busy[i]));
    if (all_share > named_share + kProcessorsShareMax / 2)
      named.emplace_back("and processes that came or went meanwhile");
    said.push_back(
        fmt::format("the processors are busy for {:.0f} % of the time: {}", share * 100, fmt::join(named, ", ")));
  }
  for (const auto& [disk, busy_ms] : after.disk_busy_ms) {
    const auto earlier = before.disk_busy_ms.find(disk);
    if (earlier == before.disk_busy_ms.end() || busy_ms < earlier->second) continue;  // the count has 32 bits
    const double busy_share = static_cast<double>(busy_ms - earlier->second) / 1e3 / seconds;
    if (busy_share > kDiskShareMax)
      said.push_back(fmt::format("the disk {} is busy for {:.0f} % of the time", disk, busy_share * 100));
  }
  return said;
}

}  // namespace terrace::bench
