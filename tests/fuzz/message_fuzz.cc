// SPDX-License-Identifier: Apache-2.0
// Packets on data.sock as the daemon receives them, with descriptors of every kind: each is a whole message or a named
// error, and no descriptor stays open.
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/text.h"
#include "front/sessions/data_connection.h"
#include "front/sessions/greeting.h"
#include "fuzz/input.h"
#include "unit/front/send_packet.h"

namespace terrace::fuzz {
namespace {

constexpr int kPacketsMax = 32;

// The lowest one that is free: the same as before, if all that came was closed.
int next_descriptor() {
  const int free = ::dup(0);
  ::close(free);
  return free;
}

struct Pair {
  Pair() {
    std::array<int, 2> ends{};
    TERRACE_CHECK(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) == 0);
    client = Fd(ends[0]);
    daemon = Fd(ends[1]);
  }
  Fd client;
  Fd daemon;
};

std::vector<std::byte> packet(Input& input) {
  const std::size_t kind = input.below(8);
  if (kind == 0) {
    const auto raw = input.span(input.below(2'000));
    return {raw.begin(), raw.end()};
  }
  // A message of ours, but for what the input says.
  constexpr std::array kTypes = {shm::MessageType::kHello, shm::MessageType::kRetired, shm::MessageType::kBye,
                                 shm::MessageType::kResume};
  constexpr std::array kSizes = {sizeof(shm::Hello), sizeof(shm::SegmentMessage), sizeof(shm::Bye),
                                 sizeof(shm::Resume)};
  const std::size_t which = input.below(kTypes.size());
  std::size_t size = kSizes[which];
  shm::MessageHeader header{.type = kTypes[which], .bytes = static_cast<std::uint32_t>(size)};
  if (kind == 1) header.version = static_cast<std::uint32_t>(input.number());
  if (kind == 2) header.type = static_cast<shm::MessageType>(input.number());
  if (kind == 3) header.bytes = static_cast<std::uint32_t>(input.number());
  if (kind == 4) size = input.below(1'100);
  std::vector<std::byte> bytes(std::max(size, sizeof header));
  std::memcpy(bytes.data(), &header, sizeof header);
  std::ranges::copy(input.span(bytes.size() - sizeof header), bytes.begin() + sizeof header);
  bytes.resize(size);
  return bytes;
}

void look_at(const front::DataConnection::Incoming& message) {
  const auto* hello = std::get_if<shm::Hello>(&message);
  if (hello == nullptr) return;
  const auto open = front::to_open(*hello);
  const bool known = hello->share_use <= static_cast<std::uint32_t>(shm::ShareUse::kCreate);
  TERRACE_CHECK(open.has_value() == (known && hello->guarantee_count <= shm::kPlacesMax));
  if (open) TERRACE_CHECK(is_utf8(open->label) && open->guarantees.size() == hello->guarantee_count);
}

void run(Input input) {
  static const std::array foreign = {Fd(::memfd_create("unsealed", MFD_CLOEXEC)), Fd(::eventfd(0, EFD_CLOEXEC)),
                                     Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC)),
                                     Fd(::open("/", O_PATH | O_CLOEXEC))};
  const int before = next_descriptor();
  {
    Pair pair;
    front::DataConnection connection(std::move(pair.daemon));
    for (int i = 0; i < kPacketsMax && !input.empty(); ++i) {
      const std::vector<std::byte> bytes = packet(input);
      std::vector<int> descriptors;
      for (std::size_t count = input.below(4) == 1 ? input.below(17) : 0; count > 0; --count) {
        const std::size_t which = input.below(foreign.size() + 1);
        descriptors.push_back(which < foreign.size() ? foreign[which].get() : pair.client.get());
      }
      front::send_packet(pair.client.get(), bytes, descriptors, MSG_DONTWAIT);
      const int waiting = next_descriptor();
      auto message = connection.receive();
      TERRACE_CHECK(next_descriptor() == waiting);
      if (!message) {
        TERRACE_CHECK(!message.error().message.empty());
        static_cast<void>(connection.send(front::refusal(message.error())));
        break;
      }
      if (message->has_value()) look_at(**message);
    }
  }
  TERRACE_CHECK(next_descriptor() == before);
}

}  // namespace
}  // namespace terrace::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  terrace::fuzz::run({data, size});
  return 0;
}
