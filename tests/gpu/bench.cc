// SPDX-License-Identifier: Apache-2.0
// Measures a daemon whose device:0 is a GPU against the driver's own copies in the same run, and prints one table:
//   cuda_bench SOCKET [--small]
// --small: a few MiB, to show that it runs; its figures mean nothing.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "cuda/driver.h"
#include "terrace/client.h"

namespace terrace::bench {
namespace {

using std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr std::uint64_t kMiB = 1ull << 20;

template <typename T>
T must(Result<T> result, const char* what) {
  if (result) {
    if constexpr (std::is_void_v<T>)
      return;
    else
      return std::move(*result);
  }
  std::fprintf(stderr, "cuda_bench: %s: %s\n", what, result.error().message.c_str());
  std::exit(1);
}

template <typename Work>
double seconds(Work work) {
  const auto begin = steady_clock::now();
  work();
  return Seconds(steady_clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

void row(const char* path, double ours, double raw, const char* unit, const char* bar) {
  std::printf("| %-44s | %10.2f | %10.2f | %-5s | %6.3f | %s |\n", path, ours, raw, unit, raw > 0 ? ours / raw : 0.0,
              bar);
  std::fflush(stdout);
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

class Terrace {
 public:
  explicit Terrace(Client client) : client_(std::move(client)) {}

  std::vector<Tensor> make(const std::string& name, std::size_t count, std::uint64_t bytes) {
    std::vector<TensorSpec> specs;
    for (std::size_t each = 0; each < count; ++each)
      specs.push_back({.name = name + std::to_string(each), .bytes = bytes});
    auto tensors = must(client_.create(specs), "create");
    for (const Tensor& tensor : tensors) {
      auto lease = must(client_.acquire(tensor, {.mode = Mode::kOverwrite}), "a lease on the host");
      std::memset(lease.writable_bytes().data(), 3, bytes);
    }
    return tensors;
  }
  void destroy(const std::vector<Tensor>& tensors) { must(client_.destroy(tensors), "destroy"); }
  // Dirty in HBM: what comes down has to be copied.
  void touch(const std::vector<Tensor>& tensors) {
    static_cast<void>(
        must(client_.acquire(tensors, {.place = Place::device(0), .mode = Mode::kWrite}), "write leases"));
  }
  double up(const std::vector<Tensor>& tensors) {
    return seconds([&] { must(client_.swap_in(tensors, Place::device(0)), "swap_in"); });
  }
  double down(const std::vector<Tensor>& tensors, Place place) {
    return seconds([&] { must(client_.swap_out(tensors, place), "swap_out"); });
  }
  double both(const std::vector<Tensor>& coming, const std::vector<Tensor>& going) {
    return seconds([&] {
      auto in = client_.swap_in_async(coming, Place::device(0));
      must(client_.swap_out(going, Place::host()), "swap_out");
      must(in.wait(kTimeoutDefault), "swap_in");
    });
  }
  double lease_ns(const Tensor& tensor, int rounds) {
    return 1e9 / rounds * seconds([&] {
             for (int round = 0; round < rounds; ++round)
               static_cast<void>(must(client_.acquire(tensor, {.place = Place::device(0)}), "a lease"));
           });
  }
  double smallest_us(const Tensor& tensor, int rounds) {
    std::vector<double> took;
    for (int round = 0; round < rounds; ++round) {
      down({tensor}, Place::host());
      took.push_back(1e6 * seconds([&] {
                       static_cast<void>(must(client_.acquire(tensor, {.place = Place::device(0)}), "a lease"));
                     }));
    }
    return median(took);
  }

 private:
  Client client_;
};

int run(const std::string& socket, bool small) {
  const std::uint64_t tensor_bytes = small ? kMiB : 64 * kMiB;
  const int rounds = small ? 1 : 5;
  const std::size_t count = small ? 3 : 16;
  Terrace terrace(must(Client::connect({.socket = socket, .label = "cuda_bench"}), "a session"));
  auto tensors = terrace.make("large", count, tensor_bytes);
  auto others = terrace.make("other", count, tensor_bytes);
  terrace.up(tensors);  // segments are made and pinned by now
  terrace.down(tensors, Place::host());
  const cuda::Api& api = *must(cuda::load(), "the driver");
  Raw raw(api, 0, small ? 4 * kMiB : 256 * kMiB);
  const double gigabytes = static_cast<double>(count * tensor_bytes) / 1e9;

  std::printf("| path | ours | raw | unit | ours/raw | bar |\n|---|---|---|---|---|---|\n");
  std::vector<double> up;
  std::vector<double> down;
  std::vector<double> both;
  for (int round = 0; round < rounds; ++round) {
    up.push_back(gigabytes / terrace.up(tensors));
    terrace.touch(tensors);
    down.push_back(gigabytes / terrace.down(tensors, Place::host()));
    terrace.up(others);
    terrace.touch(others);
    both.push_back(2 * gigabytes / terrace.both(tensors, others));
    terrace.down(tensors, Place::host());
  }
  row("DRAM to HBM, large tensors", median(up), raw.best(true, false, rounds), "GB/s", ">= 0.97");
  row("HBM to DRAM, large tensors", median(down), raw.best(false, true, rounds), "GB/s", ">= 0.97");
  row("both directions at once", median(both), raw.best(true, true, rounds), "GB/s", ">= 0.95");

  terrace.destroy(others);
  const std::size_t many = small ? 50 : 1000;
  const auto smalls = terrace.make("small", many, 64 * 1024);
  std::vector<double> rates;
  for (int round = 0; round < rounds; ++round) {
    rates.push_back(static_cast<double>(many) * 65536 / terrace.up(smalls) / 1e9);
    terrace.down(smalls, Place::host());
  }
  row("64 KiB tensors, many in flight", median(rates), raw.rate(true, false, 65536, rounds), "GB/s", ">= 1.0");

  terrace.down(tensors, Place::block());
  row("block to HBM", gigabytes / terrace.up(tensors), 0, "GB/s", "compare with fio on the same file system");
  row("lease of a resident tensor, mean", terrace.lease_ns(tensors[0], small ? 100 : 1'000'000), 0, "ns", "about 100");
  const auto one = terrace.make("one", 1, 4096);
  row("smallest miss, DRAM to HBM, p50", terrace.smallest_us(one[0], small ? 10 : 1000),
      raw.smallest_us(small ? 10 : 1000), "us", "raw + 20");
  return 0;
}

}  // namespace
}  // namespace terrace::bench

int main(int argc, char** argv) {
  if (argc < 2 || (argc > 2 && std::strcmp(argv[2], "--small") != 0)) {
    std::fprintf(stderr, "usage: cuda_bench SOCKET [--small]\n");
    return 2;
  }
  return terrace::bench::run(argv[1], argc > 2);
}
