// SPDX-License-Identifier: Apache-2.0
// What the client library hears from a daemon that is none: messages, places and segments, a session region, answers in
// the completion ring. It ends in named errors, and reads nothing that is not there.
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/mapping.h"
#include "calls.h"
#include "data_socket.h"
#include "fuzz/input.h"
#include "place_range.h"

namespace terrace::fuzz {
namespace {

using client::Calls;
using client::DataSocket;
using client::PlaceRange;

constexpr int kActsMax = 64;

template <typename T>
void check_named(const Result<T>& result) {
  TERRACE_CHECK(result.has_value() || !result.error().message.empty());
}

void hear(Input& input) {
  std::array<int, 2> ends{};
  TERRACE_CHECK(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) == 0);
  const DataSocket socket{client::Descriptor(ends[0])};
  const client::Descriptor daemon(ends[1]);
  constexpr std::array kTypes = {shm::MessageType::kWelcome, shm::MessageType::kRefused, shm::MessageType::kSegment,
                                 shm::MessageType::kRetire,  shm::MessageType::kResumed, shm::MessageType::kStitch,
                                 shm::MessageType::kUnstitch};
  constexpr std::array kSizes = {sizeof(shm::Welcome),        sizeof(shm::Refused), sizeof(shm::SegmentMessage),
                                 sizeof(shm::SegmentMessage), sizeof(shm::Resumed), sizeof(shm::StitchMessage),
                                 sizeof(shm::SegmentMessage)};
  const std::size_t which = input.below(kTypes.size());
  std::vector<std::byte> bytes(input.below(8) == 0 ? 1 + input.below(1'100) : kSizes[which]);
  shm::MessageHeader header{.type = kTypes[which], .bytes = static_cast<std::uint32_t>(bytes.size())};
  if (input.below(8) == 0) header.version = static_cast<std::uint32_t>(input.number());
  if (input.below(8) == 0) header.bytes = static_cast<std::uint32_t>(input.number());
  std::memcpy(bytes.data(), &header, std::min(sizeof header, bytes.size()));
  if (bytes.size() > sizeof header)
    std::ranges::copy(input.span(bytes.size() - sizeof header), bytes.begin() + sizeof header);
  TERRACE_CHECK(::send(daemon.get(), bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  const auto message = socket.receive(client::deadline_after({}));
  check_named(message);
  if (message && message->header.type == shm::MessageType::kRefused)
    static_cast<void>(client::error_of(message->as<shm::Refused>()));
}

// A part of one of four seams, of pages that may be mapped, and a look at it as a lease looks.
void stitch(Input& input, PlaceRange& range) {
  constexpr std::uint64_t kPage = 4096;
  shm::StitchMessage part;
  part.offset = input.below(8) == 0 ? input.number() : (std::uint64_t{1} << 48) + input.below(4) * kPage;
  part.bytes = input.below(8) == 0 ? input.number() : input.below(8) * kPage;
  part.at = input.below(4) == 0 ? input.number() : input.below(4) * kPage;
  part.count = static_cast<std::uint32_t>(input.below(8) == 0 ? input.number() : input.below(4));
  for (std::size_t i = 0; i < 4; ++i) {
    part.pieces[i].offset =
        input.below(8) == 0 ? input.number() : input.below(8 * PlaceRange::kGranuleBytes / kPage) * kPage;
    part.pieces[i].bytes = input.below(8) == 0 ? input.number() : input.below(4) * kPage;
  }
  check_named(range.stitch(part));
  if (PlaceRange::is_seam_offset(part.offset) && part.bytes != 0 && range.mapped(part.offset, part.bytes))
    static_cast<void>(*static_cast<volatile std::byte*>(range.address(part.offset, part.bytes, false)));
  if (input.below(4) == 0) range.unstitch(part.offset);
}

// A place as a welcome offers it, and the segments that come and go there.
void map(Input& input) {
  static const Fd memory = *sealed_memfd("segment", 4 * PlaceRange::kGranuleBytes);
  const shm::PlaceRecord record{
      .place = 0,
      .writable_only = static_cast<std::uint32_t>(input.below(2)),
      .range_bytes = input.below(2) == 0 ? input.number() : input.below(8) * PlaceRange::kGranuleBytes};
  auto range = PlaceRange::reserve(record, {.beside_gpu = true});
  check_named(range);
  if (!range) return;
  for (int i = 0; i < kActsMax && !input.empty(); ++i) {
    const std::uint64_t offset = input.below(4) == 0 ? input.number() : input.below(8) * PlaceRange::kGranuleBytes;
    const std::uint64_t bytes = input.below(4) == 0 ? input.number() : input.below(4) * PlaceRange::kGranuleBytes;
    if (input.below(2) == 0)
      check_named((*range)->map(offset, bytes, memory.get()));
    else if (input.below(2) == 0)
      check_named((*range)->unmap(offset, bytes));
    else
      stitch(input, **range);
    // As a lease looks at what the table says.
    if (!(*range)->holds(offset, bytes) || bytes == 0 || !(*range)->mapped(offset, bytes)) continue;
    if (offset < 8 * PlaceRange::kGranuleBytes && bytes <= 4 * PlaceRange::kGranuleBytes)
      static_cast<void>(*static_cast<volatile std::byte*>((*range)->address(offset, bytes, false)));
  }
}

// A region whose header is what the input says.
void open(Input& input) {
  alignas(64) std::array<std::byte, 4096> page{};
  shm::RegionHeader header{};
  shm::lay_out(header, static_cast<std::uint32_t>(input.number()));
  std::memcpy(page.data(), static_cast<const void*>(&header), sizeof header);
  const auto bytes = input.span(input.below(sizeof header));
  std::ranges::copy(bytes, page.begin() + static_cast<std::ptrdiff_t>(input.below(sizeof header)));
  check_named(shm::open_region(page.data(), input.below(2) == 0 ? input.number() : header.region_bytes));
}

// Requests, and answers that nobody would give.
void ask(Input& input) {
  constexpr std::uint32_t kSlots = 8;
  shm::RegionHeader layout{};
  shm::lay_out(layout, kSlots);
  auto memory = AddressRange::map(sealed_memfd("region", layout.region_bytes)->get(), layout.region_bytes,
                                  PROT_READ | PROT_WRITE);
  TERRACE_CHECK(memory.has_value());
  const shm::RegionView region = shm::view_region(memory->data(), layout);
  static const Fd doorbell(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  Calls calls(region, doorbell.get(), [&](std::uint64_t handle, shm::Mode mode) {
    TERRACE_CHECK(static_cast<std::uint32_t>(handle) < kSlots);
    TERRACE_CHECK(mode == shm::Mode::kRead || mode == shm::Mode::kOverwrite);
  });
  std::vector<std::shared_ptr<client::Call>> asked;
  for (int i = 0; i < kActsMax && !input.empty(); ++i) {
    switch (input.below(6)) {
      case 0: {
        const std::array<shm::CreateRecord, 2> records{};
        const std::array<std::uint64_t, 2> handles = {1, 2};
        const std::array<shm::Mode, 2> modes = {shm::Mode::kRead, shm::Mode::kOverwrite};
        const bool creates = input.below(2) == 0;
        const auto operation = creates ? shm::Operation::kCreate : static_cast<shm::Operation>(2 + input.below(9));
        auto call = calls.submit(
            {.operation = operation,
             .handles = creates ? std::span<const std::uint64_t>{} : handles,
             .modes = modes,
             .records = creates ? std::span<const shm::CreateRecord>(records) : std::span<const shm::CreateRecord>{},
             .waits_for_room = false},
            client::deadline_after({}));
        check_named(call);
        if (call) asked.push_back(*call);
        break;
      }
      case 1: {
        const std::uint32_t tail = region.completion_index->tail.load();
        shm::Completion& completion = region.completions[tail % shm::kRingEntries];
        completion.id = input.below(8) == 0 ? input.number() : 1 + input.below(asked.size() + 1);
        completion.code = input.below(2) == 0 ? 0 : static_cast<std::uint32_t>(input.below(20));
        completion.message_bytes = static_cast<std::uint32_t>(input.number());
        region.completion_index->tail.store(tail + 1);
        break;
      }
      case 2: {
        auto* const word = input.below(2) == 0 ? &region.completion_index->tail : &region.submission_index->head;
        word->store(static_cast<std::uint32_t>(input.number()));
        break;
      }
      case 3: {
        const auto bytes = input.span(input.below(64));
        std::ranges::copy(bytes, region.arena.begin() + static_cast<std::ptrdiff_t>(512 * input.below(64)));
        break;
      }
      case 4:
        if (!asked.empty()) calls.abandon(asked[input.below(asked.size())]);
        break;
      default:
        if (input.below(4) == 0 && calls.suspend()) calls.resume();
        static_cast<void>(calls.has_abandoned());
    }
    for (const auto& call : asked)
      if (calls.ready(call) && call->operation == shm::Operation::kCreate && !call->error)
        for (const std::uint64_t handle : call->handles) TERRACE_CHECK(static_cast<std::uint32_t>(handle) < kSlots);
  }
}

void run(Input input) {
  switch (input.below(4)) {
    case 0:
      return hear(input);
    case 1:
      return map(input);
    case 2:
      return open(input);
    default:
      return ask(input);
  }
}

}  // namespace
}  // namespace terrace::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  terrace::fuzz::run({data, size});
  return 0;
}
