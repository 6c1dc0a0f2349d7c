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
#include <thread>

#include "bench/counters.h"

namespace terrace::bench {
namespace {

constexpr std::chrono::milliseconds kLook{1000};
constexpr double kDaemonShareMax = 0.01;     // of one processor
constexpr double kProcessorsShareMax = 0.1;  // of all of them
constexpr double kDiskShareMax = 0.1;        // of the time in which some task waited for a disk
constexpr std::size_t kNamed = 3;

struct Seen {
  std::map<pid_t, std::uint64_t> cpu_ns;
  std::uint64_t disk_waits_us = 0;
};

Seen look() {
  Seen seen;
  std::error_code gone;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", gone)) {
    const std::string name = entry.path().filename().string();
    pid_t pid = 0;
    if (std::from_chars(name.data(), name.data() + name.size(), pid).ec != std::errc() || pid == ::getpid()) continue;
    seen.cpu_ns[pid] = counters_of_process(pid).cpu_ns;
  }
  std::string line;  // "some avg10=0.00 avg60=0.00 avg300=0.00 total=123"
  std::getline(std::ifstream("/proc/pressure/io"), line);
  if (const auto at = line.find("total="); at != std::string::npos)
    seen.disk_waits_us = std::stoull(line.substr(at + 6));
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
  const double share = sum / std::max(1U, std::thread::hardware_concurrency());
  if (share > kProcessorsShareMax) {
    std::vector<std::string> named;
    for (std::size_t i = 0; i < std::min(kNamed, busy.size()); ++i) named.push_back(shown(busy[i]));
    said.push_back(
        fmt::format("the processors are busy for {:.0f} % of the time: {}", share * 100, fmt::join(named, ", ")));
  }
  const double waits = static_cast<double>(after.disk_waits_us - before.disk_waits_us) / 1e6 / seconds;
  if (waits > kDiskShareMax) said.push_back(fmt::format("tasks wait for disks for {:.0f} % of the time", waits * 100));
  return said;
}

}  // namespace terrace::bench
