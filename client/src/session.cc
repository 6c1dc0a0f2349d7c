// SPDX-License-Identifier: Apache-2.0
#include "session.h"

#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <utility>

#include "sessions.h"
#include "thread_sanitizer.h"

namespace terrace::client {
namespace {

Result<std::uint32_t> world_size(const ConnectOptions& options) {
  if (options.local_world_size != 0) return options.local_world_size;
  const char* text = std::getenv("LOCAL_WORLD_SIZE");
  if (text == nullptr || *text == '\0') return 1;
  char* end = nullptr;
  const unsigned long value = std::strtoul(text, &end, 10);
  if (*end == '\0' && value >= 1 && value <= 4096) return static_cast<std::uint32_t>(value);
  return fail(ErrorCode::kInvalidArgument,
              std::string("LOCAL_WORLD_SIZE is \"") + text + "\": it is the number of ranks on this node, 1 to 4096");
}

Result<shm::Hello> make_hello(const ConnectOptions& options) {
  shm::Hello hello;
  hello.header.bytes = sizeof hello;
  hello.timeout_ns = static_cast<std::uint64_t>(std::max<std::int64_t>(options.timeout.count(), 0));
  const Result<std::uint32_t> ranks = world_size(options);
  if (!ranks) return std::unexpected(ranks.error());
  hello.local_world_size = *ranks;
  if (options.guarantees.size() > hello.guarantees.size()) {
    return fail(ErrorCode::kInvalidArgument, std::to_string(options.guarantees.size()) +
                                                 " guarantees: there are at most " + std::to_string(shm::kPlacesMax) +
                                                 " places");
  }
  for (const Guarantee& guarantee : options.guarantees) {
    if (guarantee.place == Place::block()) {
      return fail(ErrorCode::kInvalidArgument,
                  "a guarantee for block: nothing is leased there; guarantees are for host and device:0 to device:7");
    }
    hello.guarantees[hello.guarantee_count++] = {.place = guarantee.place.number(), .bytes = guarantee.bytes};
  }
  const std::size_t label_bytes_max = hello.label.size() - 1;
  if (options.label.size() > label_bytes_max) {
    return fail(ErrorCode::kInvalidArgument, "a label of " + std::to_string(options.label.size()) +
                                                 " bytes: it has at most " + std::to_string(label_bytes_max));
  }
  if (options.share) {
    const ShareOptions& share = *options.share;
    if (share.name.empty() || share.name.size() >= hello.share.size()) {
      return fail(ErrorCode::kInvalidArgument, "a share's name of " + std::to_string(share.name.size()) +
                                                   " bytes: it has 1 to " + std::to_string(hello.share.size() - 1));
    }
    if (share.name.find('\0') != std::string::npos) {
      return fail(ErrorCode::kInvalidArgument, "a share's name has no zero bytes");
    }
    std::ranges::copy(share.name, hello.share.begin());
    hello.share_use = static_cast<std::uint32_t>(share.use);
  }
  const std::string label = options.label.empty() ? program_invocation_short_name : options.label;
  std::ranges::copy(label.substr(0, label_bytes_max), hello.label.begin());
  return hello;
}

// Maps the region and takes it apart.
Result<shm::RegionView> map_region(int fd, std::uint64_t bytes) {
  struct stat status{};
  if (::fstat(fd, &status) != 0 || static_cast<std::uint64_t>(status.st_size) != bytes) {
    return fail(ErrorCode::kInternal, "terraced passed a session region of " + std::to_string(status.st_size) +
                                          " bytes and says that it has " + std::to_string(bytes));
  }
  void* found = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (found == MAP_FAILED) {
    const int error = errno;
    return fail(ErrorCode::kResourceExhausted, std::string("cannot map the session region: ") + std::strerror(error),
                error);
  }
  ::madvise(found, bytes, MADV_DONTFORK);
  ::madvise(found, bytes, MADV_DONTDUMP);
  Result<shm::RegionView> view = shm::open_region(static_cast<std::byte*>(found), bytes);
  if (!view) ::munmap(found, bytes);
  return view;
}

}  // namespace

Result<Session::Greeted> Session::greet(const ConnectOptions& options) {
  const Result<shm::Hello> hello = make_hello(options);
  if (!hello) return std::unexpected(hello.error());
  const std::string path = find_socket(options.socket);
  const Deadline deadline = deadline_after(options.timeout) + kGrace;
  Result<DataSocket> socket = DataSocket::connect(path, deadline);
  if (!socket) return std::unexpected(socket.error());
  // A daemon that refuses at once may have closed already: what it said can still be read.
  const Result<void> sent = socket->send(hello->header);
  return Greeted{.path = path,
                 .socket = std::move(*socket),
                 .overdue = deadline,
                 .reconnect_timeout = options.reconnect_timeout,
                 .sent = sent};
}

bool Session::answered(const Greeted& greeted, Deadline deadline) {
  return greeted.socket.wait(std::min(deadline, greeted.overdue)) ||
         std::chrono::steady_clock::now() >= greeted.overdue;
}

Result<Session::Opened> Session::enter(Greeted greeted) {
  Result<Message> answer = greeted.socket.receive(greeted.overdue);
  if (!answer) return std::unexpected(greeted.sent ? answer.error() : greeted.sent.error());
  if (answer->header.type == shm::MessageType::kRefused) return std::unexpected(error_of(answer->as<shm::Refused>()));
  if (answer->header.type != shm::MessageType::kWelcome) {
    return fail(ErrorCode::kInternal, "terraced answered the greeting with a message of type " +
                                          std::to_string(static_cast<std::uint32_t>(answer->header.type)));
  }
  auto session = settle(std::move(greeted), std::move(*answer));
  if (!session) return std::unexpected(session.error());
  try {
    Session& whole = **session;
    auto reader = std::make_unique<std::thread>([&whole] { whole.read_messages(); });
    return Opened{session->release(), std::move(reader)};
  } catch (const std::system_error& error) {
    return fail(ErrorCode::kResourceExhausted, std::string("no thread for the session: ") + error.what(),
                error.code().value());
  }
}

Result<std::unique_ptr<Session, void (*)(Session*)>> Session::settle(Greeted greeted, Message message) {
  const auto welcome = message.as<shm::Welcome>();
  if (message.descriptors.size() != 2 || welcome.place_count > welcome.places.size()) {
    return fail(ErrorCode::kInternal, "terraced's welcome has " + std::to_string(message.descriptors.size()) +
                                          " descriptors and " + std::to_string(welcome.place_count) +
                                          " places: 2, and at most " + std::to_string(shm::kPlacesMax) + ", are right");
  }
  Descriptor wake(::eventfd(0, EFD_CLOEXEC));
  if (!wake) return fail(ErrorCode::kResourceExhausted, std::string("no eventfd: ") + std::strerror(errno), errno);
  const Result<shm::RegionView> region = map_region(message.descriptors[0].get(), welcome.region_bytes);
  if (!region) return std::unexpected(region.error());
  std::unique_ptr<Session, void (*)(Session*)> session(
      new Session(std::move(greeted), welcome, std::move(message.descriptors[1]), std::move(wake), *region),
      [](Session* unopened) { delete unopened; });
  const std::span places(welcome.places.data(), welcome.place_count);
  const bool any_gpu = std::ranges::any_of(places, [](const auto& each) { return PlaceRange::is_gpu(each); });
  for (const shm::PlaceRecord& place : places) {
    if (place.place >= session->ranges_.size() || session->ranges_[place.place] != nullptr) {
      return fail(ErrorCode::kInternal, "terraced's welcome names place " + std::to_string(place.place) +
                                            " twice, or there is none of that number");
    }
    Result<std::unique_ptr<PlaceRange>> range =
        PlaceRange::reserve(place, {.read_only = welcome.read_only != 0, .beside_gpu = any_gpu});
    if (!range) return std::unexpected(range.error());
    session->ranges_[place.place] = std::move(*range);
  }
  return session;
}

Session::Session(Greeted greeted, const shm::Welcome& welcome, Descriptor doorbell, Descriptor wake,
                 shm::RegionView region)
    : serial_(next_serial()),
      id_(welcome.session),
      path_(std::move(greeted.path)),
      socket_(std::move(greeted.socket)),
      doorbell_(std::move(doorbell)),
      wake_(std::move(wake)),
      region_(region),
      region_bytes_(welcome.region_bytes),
      calls_(region_, doorbell_.get(), [this](std::uint64_t handle, shm::Mode mode) { give_up(handle, mode); }),
      token_(welcome.token),
      reconnect_timeout_(greeted.reconnect_timeout),
      epoch_(region.header->epoch.load(std::memory_order_relaxed)) {
  enlist(*this);
}

Session::~Session() {
  strike_off(*this);
  ::munmap(region_.base, region_bytes_);
}

std::vector<PlaceOffer> Session::offers() const {
  std::vector<PlaceOffer> offers;
  for (const std::unique_ptr<PlaceRange>& range : ranges_) {
    if (range == nullptr) continue;
    offers.push_back({.place = Place::from_number(range->record().place),
                      .capacity_bytes = range->record().range_bytes,
                      .guarantee_bytes = range->record().guarantee_bytes,
                      .gpu = range->is_gpu()});
  }
  return offers;
}

Result<std::optional<int>> Session::cuda_device(Place place) const {
  for (const std::unique_ptr<PlaceRange>& range : ranges_) {
    if (range == nullptr || range->record().place != place.number()) continue;
    if (!range->is_gpu()) return std::nullopt;
    const Result<int> ordinal = Gpu::ordinal_of(range->record().gpu);
    if (!ordinal) return std::unexpected(ordinal.error());
    return *ordinal;
  }
  return fail(ErrorCode::kInvalidArgument, "this session cannot lease in " + place.name());
}

shm::Outcome Session::give_back(std::uint64_t handle, shm::Mode mode) noexcept {
  const auto slot = static_cast<std::uint32_t>(handle);
  const auto incarnation = static_cast<std::uint32_t>(handle >> 32);
  lease_ends(this);
  const shm::Step step = shm::release(region_.table[slot].word, incarnation, mode);
  if (step.outcome == shm::Outcome::kDone && step.word.wanted && !step.word.leased()) {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(doorbell_.get(), &one, sizeof one);
  }
  return step.outcome;
}

void Session::tear(std::uint64_t handle) noexcept {
  shm::tear(region_.table[static_cast<std::uint32_t>(handle)].word, static_cast<std::uint32_t>(handle >> 32));
}

void Session::give_up(std::uint64_t handle, shm::Mode mode) noexcept {
  if (mode == shm::Mode::kOverwrite) tear(handle);  // the old bytes went when it was granted
  give_back(handle, mode);
}

void Session::give_back_log(std::uint32_t log) {
  if (!forked()) shm::LogWriter::give_back(region_.log_index(log));  // the region is not mapped in a child
}

void Session::become_forked_child() {
  forked_.store(true, std::memory_order_relaxed);
  socket_.reset();
  doorbell_.reset();
  wake_.reset();
}

Result<void> Session::usable() const {
  if (!forked()) return {};
  return fail(ErrorCode::kFailedPrecondition,
              "this process is a fork of the one that opened the session: a session cannot be used across fork; "
              "connect in the child");
}

void Session::abandon(const std::shared_ptr<Call>& call) {
  calls_.abandon(call);
  wake_reader();  // it looks after the call from now on
}

void Session::wake_reader() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
}

void Session::end_waits() {
  calls_.end_waits();
  {
    const std::lock_guard lock(mutex_);
    if (!gone_) gone_ = client_closed().error();
  }
  changed_.notify_all();
  wake_reader();
}

bool Session::settled(const std::shared_ptr<Call>& call, Deadline deadline) {
  if (calls_.wait(call, std::min(deadline, call->overdue)) || calls_.waits_ended()) return true;
  return std::chrono::steady_clock::now() >= call->overdue;
}

Result<void> Session::take(const std::shared_ptr<Call>& call) {
  if (!calls_.ready(call)) {
    abandon(call);
    if (calls_.waits_ended()) return client_closed();
    return std::unexpected(calls_.overdue());
  }
  if (call->error) return std::unexpected(*call->error);
  return {};
}

Result<void> Session::finish(const std::shared_ptr<Call>& call) {
  settled(call, call->overdue);
  return take(call);
}

}  // namespace terrace::client
