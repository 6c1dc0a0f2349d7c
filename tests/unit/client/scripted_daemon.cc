// SPDX-License-Identifier: Apache-2.0
#include "unit/client/scripted_daemon.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <string_view>
#include <thread>

#include "base/check.h"

namespace terrace::client {
namespace {

constexpr int kPatienceMs = 60'000;

constexpr std::string_view kFolderPrefix = "terrace-client-";

// What tests left that were killed: folders of processes that are gone.
void sweep(const std::filesystem::path& parent) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(parent, ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kFolderPrefix)) continue;
    const int owner = std::atoi(name.c_str() + kFolderPrefix.size());
    if (owner > 0 && ::kill(owner, 0) != 0 && errno == ESRCH) std::filesystem::remove_all(entry.path(), ignored);
  }
}

std::filesystem::path make_folder() {
  const std::filesystem::path parent = std::filesystem::temp_directory_path();
  static const bool swept = (sweep(parent), true);
  TERRACE_CHECK(swept);
  std::string name = (parent / (std::string(kFolderPrefix) + std::to_string(::getpid()) + "-XXXXXX")).string();
  TERRACE_CHECK(::mkdtemp(name.data()) != nullptr);
  return name;
}

void wait_readable(int fd) {
  pollfd ready{.fd = fd, .events = POLLIN, .revents = 0};
  TERRACE_CHECK(::poll(&ready, 1, kPatienceMs) == 1);
}

}  // namespace

bool eventually(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(kPatienceMs);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

ScriptedDaemon::ScriptedDaemon() : folder_(make_folder()) { listen(); }

ScriptedDaemon::~ScriptedDaemon() { std::filesystem::remove_all(folder_); }

void ScriptedDaemon::listen() {
  listener_ = Fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  TERRACE_CHECK(path().size() < sizeof address.sun_path);
  std::memcpy(address.sun_path, path().data(), path().size());
  TERRACE_CHECK(::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  TERRACE_CHECK(::listen(listener_.get(), 8) == 0);
}

void ScriptedDaemon::die() {
  listener_.reset();
  std::filesystem::remove(path());
  hang_up();
}

void ScriptedDaemon::take_connection() {
  wait_readable(listener_.get());
  connection_ = Fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
}

template <typename First>
First ScriptedDaemon::accept_first() {
  take_connection();
  const std::vector<std::byte> bytes = receive();
  TERRACE_CHECK(bytes.size() == sizeof(First));
  First first;
  std::memcpy(static_cast<void*>(&first), bytes.data(), sizeof first);
  TERRACE_CHECK(first.header.type == First{}.header.type && first.header.bytes == sizeof first);
  return first;
}

shm::Hello ScriptedDaemon::accept() { return accept_first<shm::Hello>(); }
shm::Resume ScriptedDaemon::accept_resume() { return accept_first<shm::Resume>(); }

void ScriptedDaemon::reset_rings() {
  for (shm::RingIndex* index : {region_.submission_index, region_.completion_index}) {
    index->head = 0;
    index->tail = 0;
  }
  submissions_ = {*region_.submission_index, region_.submissions};
  completions_ = {*region_.completion_index, region_.completions};
  rung();
}

void ScriptedDaemon::resume() {
  for (const Segment& segment : segments_)
    if (segment.file) pass(segment);
  reset_rings();
  shm::Resumed message;
  message.header.bytes = sizeof message;
  message.session = 42;
  message.epoch = ++region_.header->epoch;
  send(&message, sizeof message);
}

void ScriptedDaemon::refuse_to_resume(ErrorCode code, const std::string& message) {
  shm::Refused refused;
  refused.header.bytes = sizeof refused;
  refused.code = static_cast<std::uint32_t>(code);
  std::ranges::copy(message, refused.message.begin());
  send(&refused, sizeof refused);
  hang_up();
}

void ScriptedDaemon::welcome() {
  shm::RegionHeader layout{};
  shm::lay_out(layout, 16);
  Result<Fd> file = sealed_memfd("terrace-test-region", layout.region_bytes);
  TERRACE_CHECK(file.has_value());
  Result<AddressRange> memory = AddressRange::map(file->get(), layout.region_bytes, PROT_READ | PROT_WRITE);
  TERRACE_CHECK(memory.has_value());
  memory_ = std::move(*memory);
  shm::lay_out(*new (memory_.data()) shm::RegionHeader{}, 16);
  region_ = shm::view_region(memory_.data(), layout);
  submissions_ = {*region_.submission_index, region_.submissions};
  completions_ = {*region_.completion_index, region_.completions};
  doorbell_ = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));

  shm::Welcome message;
  message.header.bytes = sizeof message;
  message.session = 42;
  message.token = kToken;
  message.region_bytes = layout.region_bytes;
  message.place_count = 2;
  message.places[0] = {.place = shm::kPlaceHost, .range_bytes = kRangeBytes, .guarantee_bytes = kRangeBytes / 2};
  message.places[1] = {
      .place = shm::kPlaceDevice0, .writable_only = 1, .range_bytes = kRangeBytes, .guarantee_bytes = 0};
  send(&message, sizeof message, {file->get(), doorbell_.get()});
}

Client ScriptedDaemon::open(ConnectOptions options) {
  options.socket = path();
  auto connecting = beside([options] { return Client::connect(options); });
  accept();
  welcome();
  Result<Client> client = connecting.get();
  TERRACE_CHECK(client.has_value());
  return std::move(*client);
}

void ScriptedDaemon::send(const void* bytes, std::size_t size, const std::vector<int>& descriptors) const {
  iovec piece{.iov_base = const_cast<void*>(bytes), .iov_len = size};
  msghdr packet{};
  packet.msg_iov = &piece;
  packet.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(4 * sizeof(int))> control{};
  if (!descriptors.empty()) {
    packet.msg_control = control.data();
    packet.msg_controllen = CMSG_SPACE(descriptors.size() * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&packet);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size() * sizeof(int));
  }
  TERRACE_CHECK(::sendmsg(connection_.get(), &packet, MSG_NOSIGNAL) == static_cast<ssize_t>(size));
}

std::vector<std::byte> ScriptedDaemon::receive() const {
  wait_readable(connection_.get());
  std::vector<std::byte> bytes(4096);
  const ssize_t received = ::recv(connection_.get(), bytes.data(), bytes.size(), 0);
  bytes.resize(received < 0 ? 0 : static_cast<std::size_t>(received));
  return bytes;
}

bool ScriptedDaemon::has_message() const {
  pollfd ready{.fd = connection_.get(), .events = POLLIN, .revents = 0};
  return ::poll(&ready, 1, 0) == 1;
}

std::byte* ScriptedDaemon::pass_segment(std::uint32_t place, std::uint64_t offset) {
  Result<Fd> file = sealed_memfd("terrace-test-segment", kSegmentBytes);
  TERRACE_CHECK(file.has_value());
  Result<AddressRange> memory = AddressRange::map(file->get(), kSegmentBytes, PROT_READ | PROT_WRITE);
  TERRACE_CHECK(memory.has_value());
  segments_.push_back({place, offset, std::move(*file), std::move(*memory)});
  pass(segments_.back());
  return segments_.back().memory.data();
}

void ScriptedDaemon::pass(const Segment& segment) const {
  shm::SegmentMessage message{.header = {.type = shm::MessageType::kSegment, .bytes = sizeof message},
                              .place = segment.place,
                              .offset = segment.offset,
                              .bytes = kSegmentBytes};
  send(&message, sizeof message, {segment.file.get()});
}

void ScriptedDaemon::lose_segment(std::uint32_t place, std::uint64_t offset) {
  for (Segment& segment : segments_)
    if (segment.place == place && segment.offset == offset) segment.file.reset();
}

void ScriptedDaemon::retire_segment(std::uint32_t place, std::uint64_t offset) const {
  shm::SegmentMessage message{.header = {.type = shm::MessageType::kRetire, .bytes = sizeof message},
                              .place = place,
                              .offset = offset,
                              .bytes = kSegmentBytes};
  send(&message, sizeof message);
}

Asked ScriptedDaemon::next() {
  while (true) {
    if (std::optional<Asked> asked = next_if_any()) return std::move(*asked);
    wait_readable(doorbell_.get());
    rung();
  }
}

std::optional<Asked> ScriptedDaemon::next_if_any() {
  std::array<shm::Submission, 1> entry;
  const Result<std::size_t> count = submissions_.pop(entry);
  TERRACE_CHECK(count.has_value());
  if (*count == 0) return std::nullopt;
  Asked asked{.submission = entry[0], .handles = {}, .modes = {}, .records = {}};
  const std::byte* block = region_.arena.data() + entry[0].block_offset;
  if (entry[0].operation == shm::Operation::kCreate) {
    asked.records.resize(entry[0].count);
    std::memcpy(static_cast<void*>(asked.records.data()), block, entry[0].count * sizeof(shm::CreateRecord));
  } else if (entry[0].count != 0) {
    asked.handles.resize(entry[0].count);
    std::memcpy(asked.handles.data(), block, entry[0].count * sizeof(std::uint64_t));
    if (entry[0].operation == shm::Operation::kAcquire) {
      asked.modes.resize(entry[0].count);
      std::memcpy(asked.modes.data(), block + entry[0].count * sizeof(std::uint64_t), entry[0].count);
    }
  }
  return asked;
}

bool ScriptedDaemon::rung() const {
  std::uint64_t rings = 0;
  return ::read(doorbell_.get(), &rings, sizeof rings) == sizeof rings;
}

void ScriptedDaemon::answer(const Asked& asked, const std::vector<std::uint64_t>& result) {
  if (!result.empty()) {
    std::memcpy(region_.arena.data() + asked.submission.block_offset, result.data(),
                result.size() * sizeof(std::uint64_t));
  }
  complete({.id = asked.submission.id, .code = 0, .message_bytes = 0});
}

void ScriptedDaemon::refuse(const Asked& asked, ErrorCode code, const std::string& message) {
  std::memcpy(region_.arena.data() + asked.submission.block_offset, message.data(), message.size());
  complete({.id = asked.submission.id,
            .code = static_cast<std::uint32_t>(code),
            .message_bytes = static_cast<std::uint32_t>(message.size())});
}

void ScriptedDaemon::complete(const shm::Completion& completion) {
  TERRACE_CHECK(completions_.push(completion) == true);
  completions_.wake();
}

Tensor ScriptedDaemon::create(Client& client, const std::string& name, std::uint64_t bytes, std::uint32_t slot) {
  auto creating = beside([&] { return client.create({.name = name, .bytes = bytes}); });
  const Asked asked = next();
  publish(slot, {.state = shm::State::kAbsent}, 0, shm::kPlaceNowhere);
  answer(asked, {handle(slot)});
  const Result<Tensor> tensor = creating.get();
  TERRACE_CHECK(tensor.has_value());
  return *tensor;
}

void ScriptedDaemon::publish(std::uint32_t slot, shm::Word word, std::uint64_t offset, std::uint32_t place) {
  word.incarnation = 1;
  shm::TableSlot& entry = region_.table[slot];
  entry.offset = offset;
  entry.place = place;
  shm::publish(entry.word, word);
}

}  // namespace terrace::client
