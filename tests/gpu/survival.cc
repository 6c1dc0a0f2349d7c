// SPDX-License-Identifier: Apache-2.0
// Establishes whether what lies in HBM outlives the daemon that exported it, in a trainer's import and in the
// descriptor store of its supervisor:
//   cuda_survival SOCKET PID
// PID: the daemon's, which is killed; its device:0 is a GPU with write_back = "late". Two lines say what was found,
// whatever it is; the status is 0 unless it could not be tried.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "cuda/driver.h"
#include "gpu/must.h"
#include "terrace/client.h"

namespace terrace {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kBytes = 2 << 20;

std::vector<std::byte> pattern() {
  std::vector<std::byte> bytes(kBytes);
  for (std::size_t at = 0; at < bytes.size(); ++at) bytes[at] = static_cast<std::byte>(at * 7 + at / 251);
  return bytes;
}

// As a trainer's own copy sees it.
std::string look_at(const cuda::Api& api, const Lease& lease) {
  std::vector<std::byte> seen(kBytes);
  Result<void> copied =
      api.copy_down(seen.data(), reinterpret_cast<std::uintptr_t>(lease.bytes().data()), kBytes, nullptr);
  if (copied) copied = api.stream_synchronize(nullptr);
  if (!copied) return "lost: " + copied.error().message;
  return seen == pattern() ? "kept" : "lost: other bytes are there";
}

bool comes_back(const Client& client) {
  const auto limit = std::chrono::steady_clock::now() + 60s;
  while (client.reconnects() == 0 && std::chrono::steady_clock::now() < limit) std::this_thread::sleep_for(10ms);
  return client.reconnects() != 0;
}

std::string read_back(Client& client, const Tensor& tensor) {
  if (!comes_back(client)) return "held: no daemon served within a minute, see its log";
  const Result<Lease> read = client.acquire(tensor, {.place = Place::host(), .mode = Mode::kRead});
  if (!read) return "lost: " + read.error().message;
  return std::ranges::equal(read->bytes(), pattern()) ? "kept" : "lost: other bytes are there";
}

int run(const char* socket, pid_t daemon) {
  const cuda::Api& api = *must(cuda::load(), "the driver");
  cuda::Device device = 0;
  cuda::Context context = nullptr;
  must(api.device(&device, 0), "the device");
  must(api.primary_retain(&context, device), "the context");
  const cuda::Current current(api, context);
  Client client = must(Client::connect({.socket = socket}), "connect");
  const Tensor tensor = must(client.create({.name = "survivor", .bytes = kBytes}), "create");
  const std::vector<std::byte> written = pattern();
  {
    const Lease lease =
        must(client.acquire(tensor, {.place = Place::device(0), .mode = Mode::kOverwrite}), "a lease in HBM");
    must(api.copy_up(reinterpret_cast<std::uintptr_t>(lease.bytes().data()), written.data(), kBytes, nullptr),
         "a copy");
    must(api.stream_synchronize(nullptr), "a copy");
  }
  Lease held = must(client.acquire(tensor, {.place = Place::device(0), .mode = Mode::kRead}), "a lease in HBM");
  if (::kill(daemon, SIGKILL) != 0) {
    std::perror("cuda_survival: killing the daemon");
    return 1;
  }
  std::this_thread::sleep_for(100ms);  // so that the driver has seen it go
  std::printf("a trainer's lease in HBM, after the daemon was killed: %s\n", look_at(api, held).c_str());
  must(held.release(), "a release");
  std::printf("what was in HBM alone, served by the next daemon: %s\n", read_back(client, tensor).c_str());
  return 0;
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  const long daemon = argc == 3 ? std::atol(argv[2]) : 0;
  if (daemon > 1) return terrace::run(argv[1], static_cast<pid_t>(daemon));
  std::fputs("usage: cuda_survival SOCKET PID\n", stderr);
  return 2;
}
