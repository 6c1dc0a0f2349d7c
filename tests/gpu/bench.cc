// SPDX-License-Identifier: Apache-2.0
// Measures a daemon whose device:0 is a GPU against the driver's own copies and plain reads of the disk, in turns in
// the same run (tests/bench/rounds.h), and prints one table:
//   cuda_bench SOCKET BLOCK_FILE [--small] [--set GIB]
// BLOCK_FILE: the daemon's; --set: how much comes from there to HBM (20). --small: a few MiB, to show that it runs; its
// figures mean nothing.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "bench/rounds.h"
#include "bench/table.h"
#include "cuda/driver.h"
#include "gpu/must.h"
#include "terrace/client.h"

namespace terrace::bench {
namespace {

using std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr std::uint64_t kMiB = 1ull << 20;
constexpr std::uint64_t kGiB = 1ull << 30;

template <typename Work>
double seconds(Work work) {
  const auto begin = steady_clock::now();
  work();
  return Seconds(steady_clock::now() - begin).count();
}

// The driver itself: pinned memory and a device's, copied by streams of its own.
class Raw {
 public:
  Raw(const cuda::Api& api, int ordinal, std::uint64_t bytes) : api_(api), bytes_(bytes) {
    cuda::Device device = 0;
    must(api_.device(&device, ordinal), "the device");
    must(api_.primary_retain(&context_, device), "the context");
    must(api_.context_push(context_), "the context");
    must(api_.memory_allocate(&device_, 2 * bytes), "device memory");
    host_ = static_cast<std::byte*>(std::aligned_alloc(4096, 2 * bytes));
    std::memset(host_, 1, 2 * bytes);
    must(api_.host_register(host_, 2 * bytes, 0), "pinning");
    for (cuda::Stream& stream : streams_) must(api_.stream_create(&stream, cuda::kStreamNonBlocking, 0), "a stream");
    must(api_.event_create(&event_, cuda::kEventDisableTiming), "an event");
  }
  Raw(const Raw&) = delete;
  Raw& operator=(const Raw&) = delete;
  ~Raw() {
    static_cast<void>(api_.host_unregister(host_));
    std::free(host_);
    static_cast<void>(api_.memory_free(device_));
  }

  double rate(bool up, bool down, std::uint64_t piece, int rounds) {
    const double took = seconds([&] {
      for (int round = 0; round < rounds; ++round) {
        for (std::uint64_t at = 0; at + piece <= bytes_; at += piece) {
          if (up) must(api_.copy_up(device_ + at, host_ + at, piece, streams_[0]), "a copy");
          if (down) must(api_.copy_down(host_ + bytes_ + at, device_ + bytes_ + at, piece, streams_[1]), "a copy");
        }
      }
      for (const cuda::Stream stream : streams_) must(api_.stream_synchronize(stream), "a stream");
    });
    const auto moved = static_cast<double>(bytes_ / piece * piece) * rounds * (up && down ? 2 : 1);
    return moved / took / 1e9;
  }
  double best(bool up, bool down, int rounds) {
    double found = 0;
    for (std::uint64_t piece = std::min(4 * kMiB, bytes_); piece <= bytes_; piece *= 4)
      found = std::max(found, rate(up, down, piece, rounds));
    return found;
  }
  double smallest_us(int rounds) {
    std::vector<double> took;
    for (int round = 0; round < rounds; ++round) {
      took.push_back(1e6 * seconds([&] {
                       must(api_.copy_up(device_, host_, 4096, streams_[0]), "a copy");
                       must(api_.event_record(event_, streams_[0]), "an event");
                       must(api_.event_synchronize(event_), "an event");
                     }));
    }
    return median(took);
  }

 private:
  const cuda::Api& api_;
  std::uint64_t bytes_;
  cuda::Context context_ = nullptr;
  cuda::Pointer device_ = 0;
  std::byte* host_ = nullptr;
  std::array<cuda::Stream, 2> streams_{};
  cuda::Event event_ = nullptr;
};

// The disk alone: the daemon's block file, read by plain threads with O_DIRECT.
class Disk {
 public:
  Disk(const std::string& path, std::uint64_t bytes)
      : file_(::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC)), bytes_(bytes) {
    if (file_) return;
    std::perror(("cuda_bench: " + path).c_str());
    std::exit(1);
  }

  // Bytes a second; each call goes on where the last one ended.
  double rate(std::uint64_t bytes) {
    std::atomic<std::uint64_t> left = bytes / kPiece;
    const std::uint64_t begin = next_;
    const double took = seconds([&] {
      std::vector<std::jthread> threads;
      for (unsigned i = 0; i < kThreads; ++i) threads.emplace_back([&] { read_some(left, begin); });
    });
    next_ = (next_ + bytes) % bytes_;
    return static_cast<double>(bytes) / took;
  }

 private:
  static constexpr unsigned kThreads = 32;
  static constexpr std::uint64_t kPiece = kMiB;

  void read_some(std::atomic<std::uint64_t>& left, std::uint64_t begin) const {
    const std::unique_ptr<void, decltype(&std::free)> memory(std::aligned_alloc(4096, kPiece), &std::free);
    for (std::uint64_t piece = left.load(); piece > 0;) {
      if (!left.compare_exchange_weak(piece, piece - 1)) continue;
      const std::uint64_t at = (begin + piece * kPiece) % (bytes_ / kPiece * kPiece);
      if (::pread(file_.get(), memory.get(), kPiece, static_cast<off_t>(at)) == static_cast<ssize_t>(kPiece)) continue;
      std::perror("cuda_bench: reading the block file");
      std::exit(1);
    }
  }

  Fd file_;
  std::uint64_t bytes_;
  std::uint64_t next_ = 0;
};

using Tensors = std::vector<Tensor>;

double gigabytes(const Tensors& tensors) {
  double sum = 0;
  for (const Tensor& tensor : tensors) sum += static_cast<double>(tensor.bytes());
  return sum / 1e9;
}

class Terrace {
 public:
  explicit Terrace(Client client) : client_(std::move(client)) {}

  // Written on the host; `away`: and brought to the block tier, one after the other.
  Tensors make(const std::string& name, std::size_t count, std::uint64_t bytes, bool away = false) {
    std::vector<TensorSpec> specs;
    for (std::size_t each = 0; each < count; ++each)
      specs.push_back({.name = name + std::to_string(each), .bytes = bytes});
    auto tensors = must(client_.create(specs), "create");
    for (const Tensor& tensor : tensors) {
      auto lease = must(client_.acquire(tensor, {.mode = Mode::kOverwrite}), "a lease on the host");
      std::memset(lease.writable_bytes().data(), 3, bytes);
      must(lease.release(), "a release");
      if (away) down({tensor}, Place::block());
    }
    return tensors;
  }
  void destroy(const Tensors& tensors) { must(client_.destroy(tensors), "destroy"); }
  // Dirty in HBM: what comes down has to be copied.
  void touch(const Tensors& tensors) {
    static_cast<void>(
        must(client_.acquire(tensors, {.place = Place::device(0), .mode = Mode::kWrite}), "write leases"));
  }
  double up(const Tensors& tensors) {
    return seconds([&] { must(client_.swap_in(tensors, Place::device(0)), "swap_in"); });
  }
  double down(const Tensors& tensors, Place place) {
    return seconds([&] { must(client_.swap_out(tensors, place), "swap_out"); });
  }
  double both(const Tensors& coming, const Tensors& going) {
    return seconds([&] {
      auto in = client_.swap_in_async(coming, Place::device(0));
      must(client_.swap_out(going, Place::host()), "swap_out");
      must(in.wait(kTimeoutDefault), "swap_in");
    });
  }
  // More than HBM holds: in groups, of which the next is asked for before the last has come.
  double stream(const Tensors& tensors, std::size_t group) {
    return seconds([&] {
      std::deque<Pending<void>> coming;
      for (std::size_t at = 0; at < tensors.size(); at += group) {
        const std::span some = std::span(tensors).subspan(at, std::min(group, tensors.size() - at));
        coming.push_back(client_.swap_in_async(some, Place::device(0)));
        if (coming.size() < 2) continue;
        must(coming.front().wait(kTimeoutDefault), "swap_in");
        coming.pop_front();
      }
      for (auto& last : coming) must(last.wait(kTimeoutDefault), "swap_in");
    });
  }
  // The clock is read around a batch of them: reading it costs a third of one.
  double lease_ns(const Tensor& tensor, int batches) {
    constexpr int kBatch = 64;
    std::vector<double> took;
    for (int batch = 0; batch < batches; ++batch)
      took.push_back(1e9 / kBatch * seconds([&] {
                       for (int each = 0; each < kBatch; ++each)
                         static_cast<void>(must(client_.acquire(tensor, {.place = Place::device(0)}), "a lease"));
                     }));
    return median(std::move(took));
  }
  double miss_us(const Tensor& tensor, int misses) {
    std::vector<double> took;
    for (int each = 0; each < misses; ++each) {
      down({tensor}, Place::host());
      took.push_back(1e6 * seconds([&] {
                       static_cast<void>(must(client_.acquire(tensor, {.place = Place::device(0)}), "a lease"));
                     }));
    }
    return median(std::move(took));
  }

 private:
  Client client_;
};

struct Sizes {
  bool small = false;
  std::uint64_t set_bytes = 20 * kGiB;
  int rounds() const { return small ? 1 : 5; }
  std::uint64_t tensor_bytes() const { return small ? kMiB : 64 * kMiB; }
  std::size_t group() const { return small ? 3 : 16; }
};

class Table {
 public:
  explicit Table(int rounds) : rounds_(rounds) {}

  void add(Row row, const Measure& value, const Measure& reference) {
    std::fprintf(stderr, "measuring %s\n", row.bench.c_str());
    const Compared figures = compared(must(take_turns(rounds_, value, reference), "a round"));
    row.value = figures.value;
    row.reference_value = figures.reference;
    row.interval = figures.interval;
    rows_.push_back(std::move(row));
  }
  // A row of which the value alone is bounded.
  void add(Row row) {
    row.ratio_of = RatioOf::kValue;
    row.better = Better::kLower;
    rows_.push_back(std::move(row));
  }
  void print() const { std::printf("%s\n%s\n", to_markdown(rows_).c_str(), summary(rows_).c_str()); }

 private:
  int rounds_;
  std::vector<Row> rows_;
};

void measure_copies(Table& table, Terrace& terrace, Raw& raw, const Sizes& sizes) {
  const auto tensors = terrace.make("large", sizes.group(), sizes.tensor_bytes());
  const auto others = terrace.make("other", sizes.group(), sizes.tensor_bytes());
  const double size = gigabytes(tensors);
  const auto raw_rate = [&](bool up, bool down) -> Measure { return [&, up, down] { return raw.best(up, down, 3); }; };
  terrace.up(tensors);  // segments are made and pinned by now
  terrace.down(tensors, Place::host());
  table.add(
      {.bench = "hbm.up",
       .path = "DRAM to HBM, large tensors",
       .unit = "GB/s",
       .reference = "cuMemcpyHtoDAsync, pinned",
       .bar = 0.97},
      [&]() -> Result<double> {
        const double took = terrace.up(tensors);
        terrace.down(tensors, Place::host());
        return size / took;
      },
      raw_rate(true, false));
  table.add(
      {.bench = "hbm.down",
       .path = "HBM to DRAM, large tensors",
       .unit = "GB/s",
       .reference = "cuMemcpyDtoHAsync, pinned",
       .bar = 0.97},
      [&]() -> Result<double> {
        terrace.up(tensors);
        terrace.touch(tensors);
        return size / terrace.down(tensors, Place::host());
      },
      raw_rate(false, true));
  table.add(
      {.bench = "hbm.both",
       .path = "both directions at once",
       .unit = "GB/s",
       .reference = "the driver's copies, both at once",
       .bar = 0.95},
      [&]() -> Result<double> {
        terrace.up(others);
        terrace.touch(others);
        const double took = terrace.both(tensors, others);
        terrace.down(tensors, Place::host());
        return 2 * size / took;
      },
      raw_rate(true, true));
  terrace.destroy(tensors);
  terrace.destroy(others);
}

void measure_small(Table& table, Terrace& terrace, Raw& raw, const Sizes& sizes) {
  constexpr std::uint64_t kBytes = 64 * 1024;
  const auto smalls = terrace.make("small", sizes.small ? 50 : 1000, kBytes);
  terrace.up(smalls);
  terrace.down(smalls, Place::host());
  table.add(
      {.bench = "hbm.small",
       .path = "64 KiB tensors, all of them in flight",
       .unit = "GB/s",
       .reference = "cuMemcpyHtoDAsync of as many bytes each, one stream",
       .bar = 1.0},
      [&]() -> Result<double> {
        const double took = terrace.up(smalls);
        terrace.down(smalls, Place::host());
        return gigabytes(smalls) / took;
      },
      [&] { return raw.rate(true, false, kBytes, 1); });
  const int times = sizes.small ? 10 : 1000;
  terrace.up({smalls[0]});
  table.add({.bench = "hbm.lease",
             .path = "lease of a tensor in HBM, p50",
             .value = terrace.lease_ns(smalls[0], times),
             .unit = "ns",
             .bar = 100});
  const auto one = terrace.make("one", 1, 4096);
  const Compared miss = compared(
      must(take_turns(
               sizes.rounds(), [&] { return terrace.miss_us(one[0], times); }, [&] { return raw.smallest_us(times); }),
           "misses"));
  table.add({.bench = "hbm.miss",
             .path = "smallest miss, DRAM to HBM, p50, over a copy and its event",
             .value = miss.value - miss.reference,
             .unit = "us",
             .bar = 20,
             .counts = {{"us, the miss", miss.value}, {"us, the driver's copy and event", miss.reference}}});
  terrace.destroy(smalls);
}

void measure_block(Table& table, Terrace& terrace, Raw& raw, Disk& disk, const Sizes& sizes) {
  const auto set = terrace.make("set", sizes.set_bytes / sizes.tensor_bytes(), sizes.tensor_bytes(), true);
  const std::uint64_t sample = std::min(sizes.set_bytes, 4 * kGiB);
  table.add(
      {.bench = "hbm.block",
       .path = "block to HBM, a set of " + std::to_string(sizes.set_bytes / kMiB) + " MiB",
       .unit = "GB/s",
       .reference = "the slower of the disk and the GPU's link, each alone",
       .bar = 0.95},
      [&]() -> Result<double> {
        terrace.down(set, Place::block());
        return gigabytes(set) / terrace.stream(set, sizes.group());
      },
      [&] { return std::min(disk.rate(sample) / 1e9, raw.best(true, false, 1)); });
}

int run(const std::string& socket, const std::string& block_file, const Sizes& sizes) {
  Terrace terrace(must(Client::connect({.socket = socket, .label = "cuda_bench"}), "a session"));
  const cuda::Api& api = *must(cuda::load(), "the driver");
  Raw raw(api, 0, sizes.small ? 4 * kMiB : 256 * kMiB);
  Disk disk(block_file, sizes.set_bytes);
  Table table(sizes.rounds());
  measure_copies(table, terrace, raw, sizes);
  measure_small(table, terrace, raw, sizes);
  measure_block(table, terrace, raw, disk, sizes);
  table.print();
  return 0;
}

}  // namespace
}  // namespace terrace::bench

int main(int argc, char** argv) {
  terrace::bench::Sizes sizes;
  bool understood = argc >= 3;
  for (int at = 3; at < argc && understood; ++at) {
    const std::string argument = argv[at];
    if (argument == "--small") {
      sizes = {.small = true, .set_bytes = 24 * terrace::bench::kMiB};
    } else if (argument == "--set" && at + 1 < argc) {
      sizes.set_bytes = std::strtoull(argv[++at], nullptr, 10) * terrace::bench::kGiB;
    } else {
      understood = false;
    }
  }
  if (!understood || sizes.set_bytes == 0) {
    std::fprintf(stderr, "usage: cuda_bench SOCKET BLOCK_FILE [--small] [--set GIB]\n");
    return 2;
  }
  return terrace::bench::run(argv[1], argv[2], sizes);
}
