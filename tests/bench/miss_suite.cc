// SPDX-License-Identifier: Apache-2.0
// The smallest miss: 4 KiB from DRAM to the device, against two processes that wake each other up as client and daemon
// do.
#include <fmt/format.h>
#include <linux/futex.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <thread>
#include <utility>

#include "base/bytes.h"
#include "base/fd.h"
#include "bench/contents.h"
#include "bench/counters.h"
#include "bench/suite.h"

namespace terrace::bench {
namespace {

constexpr std::uint64_t kTensors = 256;  // on the device together, so that they miss one after another
constexpr std::uint64_t kTensorBytes = 4 * kKiB;
constexpr std::chrono::milliseconds kAlone{1};

// An eventfd one way and a futex the other: what a request through the rings is made of.
class PingPong {
 public:
  static Result<std::unique_ptr<PingPong>> start() {
    std::unique_ptr<PingPong> pair(new PingPong());
    void* const page = ::mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pair->bell_ = Fd(::eventfd(0, 0));
    if (page == MAP_FAILED || !pair->bell_) return fail(ErrorCode::kUnavailable, "no memory for a ping-pong", errno);
    pair->answered_ = new (page) std::atomic<std::uint32_t>(0);
    auto child = Child::run([&] { return pair->answer(); });
    if (!child) return std::unexpected(child.error());
    pair->child_ = std::move(*child);
    return pair;
  }
  PingPong(const PingPong&) = delete;
  PingPong& operator=(const PingPong&) = delete;
  ~PingPong() {
    if (answered_ != nullptr) ::munmap(answered_, kPageBytes);
  }

  // Nanoseconds of each of so many turns.
  std::vector<double> play(std::size_t turns) {
    std::vector<double> took;
    took.reserve(turns);
    for (std::size_t i = 0; i < turns; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      const std::uint32_t before = answered_->load(std::memory_order_acquire);
      const std::uint64_t one = 1;
      if (::write(bell_.get(), &one, sizeof(one)) != sizeof(one)) return {};
      while (answered_->load(std::memory_order_acquire) == before) futex(FUTEX_WAIT, before);
      took.push_back(seconds_since(begin) * 1e9);
    }
    return took;
  }

 private:
  PingPong() = default;

  int answer() {
    std::uint64_t rung = 0;
    while (::read(bell_.get(), &rung, sizeof(rung)) == sizeof(rung)) {
      answered_->fetch_add(1, std::memory_order_release);
      futex(FUTEX_WAKE, INT_MAX);
    }
    return 1;
  }

  void futex(int operation, std::uint32_t value) {
    ::syscall(SYS_futex, answered_, operation, value, nullptr, nullptr, 0);
  }

  std::atomic<std::uint32_t>* answered_ = nullptr;
  Fd bell_;
  Child child_;
};

// Nanoseconds of each of the tensors' leases on the device, which all miss.
Result<std::vector<double>> miss(Client& client, std::span<const Tensor> tensors) {
  std::vector<double> took;
  for (const Tensor& tensor : tensors) {
    const auto begin = std::chrono::steady_clock::now();
    const Result<Lease> lease = client.acquire(tensor, {.place = Place::device(0)});
    took.push_back(seconds_since(begin) * 1e9);
    if (!lease) return std::unexpected(lease.error());
  }
  return took;
}

Result<void> check_bytes(Client& client, std::span<const Tensor> tensors) {
  for (std::uint64_t i = 0; i < tensors.size(); ++i) {
    const auto lease = client.acquire(tensors[i], {.place = Place::device(0)});
    if (!lease) return std::unexpected(lease.error());
    if (const auto right = check(lease->bytes(), i, 1); !right) return right;
  }
  return {};
}

struct Lone {
  double wake_ups;  // of this thread and of all of the daemon's
  double ns;
};

// Medians of misses that come alone: the daemon sleeps when they come, as it does between a trainer's layers.
Result<Lone> miss_alone(Client& client, std::span<const Tensor> tensors, pid_t daemon) {
  if (const auto down = client.swap_out(tensors, Place::host()); !down) return std::unexpected(down.error());
  std::vector<double> wake_ups;
  std::vector<double> ns;
  const auto waits = [&] { return counters_of_this_thread().waits + counters_of_process(daemon).waits; };
  for (const Tensor& tensor : tensors) {
    std::this_thread::sleep_for(kAlone);
    const std::uint64_t before = waits();
    const auto missed = miss(client, {&tensor, 1});
    if (!missed) return std::unexpected(missed.error());
    std::this_thread::sleep_for(kAlone);  // a thread is counted when it begins to wait for what comes next
    wake_ups.push_back(static_cast<double>(waits() - before) - 1);
    ns.push_back(missed->front());
  }
  if (const auto right = check_bytes(client, tensors); !right) return std::unexpected(right.error());
  return Lone{median(std::move(wake_ups)), median(std::move(ns))};
}

Result<std::vector<Tensor>> create(Client& client) {
  std::vector<TensorSpec> specs;
  for (std::uint64_t i = 0; i < kTensors; ++i)
    specs.push_back({.name = fmt::format("small {}", i), .bytes = kTensorBytes});
  auto tensors = client.create(specs);
  if (!tensors) return tensors;
  for (std::uint64_t i = 0; i < kTensors; ++i) {
    auto lease = client.acquire((*tensors)[i], {.mode = Mode::kOverwrite});
    if (!lease) return std::unexpected(lease.error());
    fill(lease->writable_bytes(), i, 1);
  }
  return tensors;
}

Result<void> run(Bench& bench) {
  auto daemon = bench.start_daemon({.device_bytes = 16 * kMiB, .memory_bytes = 64 * kMiB});
  if (!daemon) return std::unexpected(daemon.error());
  auto client = daemon->connect();
  if (!client) return std::unexpected(client.error());
  const auto tensors = create(*client);
  if (!tensors) return std::unexpected(tensors.error());
  auto reference = PingPong::start();
  if (!reference) return std::unexpected(reference.error());

  const int passes = bench.either(16, 3);
  std::uint64_t daemons_cpu_ns = 0;
  std::uint64_t wake_ups = 0;
  std::uint64_t misses = 0;
  const Measure value = [&]() -> Result<double> {
    std::vector<double> all;
    for (int pass = 0; pass < passes; ++pass) {
      if (const auto down = client->swap_out(*tensors, Place::host()); !down) return std::unexpected(down.error());
      const std::uint64_t before_waits = counters_of_this_thread().waits;
      const Counters before = counters_of_process(daemon->pid());
      const auto took = miss(*client, *tensors);
      if (!took) return std::unexpected(took.error());
      const Counters used = counters_of_process(daemon->pid()) - before;
      daemons_cpu_ns += used.cpu_ns;
      wake_ups += used.waits + counters_of_this_thread().waits - before_waits;
      misses += took->size();
      all.insert(all.end(), took->begin(), took->end());
      if (const auto right = check_bytes(*client, *tensors); !right) return std::unexpected(right.error());
    }
    return median(std::move(all));
  };
  const Measure turns = [&]() -> Result<double> {
    std::vector<double> took = (*reference)->play(static_cast<std::size_t>(passes) * kTensors);
    if (took.empty()) return fail(ErrorCode::kUnavailable, "the ping-pong ended");
    return median(std::move(took));
  };
  for (const Measure* warm : {&value, &turns})
    if (const auto warmed = (*warm)(); !warmed) return std::unexpected(warmed.error());
  daemons_cpu_ns = wake_ups = misses = 0;
  const auto rounds = bench.take_turns("miss.smallest", value, turns);
  if (!rounds) return std::unexpected(rounds.error());
  const auto alone = miss_alone(*client, *tensors, daemon->pid());
  if (!alone) return std::unexpected(alone.error());
  const auto a_miss = [&](std::uint64_t sum) { return static_cast<double>(sum) / static_cast<double>(misses); };
  bench.add(with({.bench = "miss.smallest",
                  .path = "smallest miss (4 KiB, DRAM to device), p50",
                  .unit = "ns",
                  .reference = "eventfd + futex ping-pong between two processes, p50",
                  .bar = 1.5,
                  .better = Better::kLower,
                  .counts = {{.name = "wake-ups a miss, of client and daemon", .value = a_miss(wake_ups), .limit = 2},
                             {.name = "ns of the daemon's CPU a miss", .value = a_miss(daemons_cpu_ns)},
                             {.name = "ns of a miss that comes alone, p50", .value = alone->ns}}},
                 *rounds));
  bench.add({.bench = "miss.wake_ups",
             .path = "wake-ups of client and daemon together, a smallest miss that comes alone",
             .value = alone->wake_ups,
             .unit = "wake-ups",
             .ratio_of = RatioOf::kValue,
             .bar = 2,
             .better = Better::kLower});
  return {};
}

}  // namespace

Suite miss_suite() {
  return {.name = "miss",
          .what = "the smallest miss, against a ping-pong of two processes",
          .rows = {"miss.smallest", "miss.wake_ups"},
          .lacks = nullptr,
          .run = run};
}

}  // namespace terrace::bench
