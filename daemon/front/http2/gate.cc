// SPDX-License-Identifier: Apache-2.0
#include "front/http2/gate.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/bytes.h"

namespace terrace::front {
namespace {

constexpr std::uint64_t kBellKey = 0;
constexpr int kEventsAtOnce = 64;
constexpr int kPiecesAtOnce = 8;  // of one connection, until the others' turn comes
constexpr std::chrono::milliseconds kPacing(1);

bool not_now() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

std::unexpected<Error> gone() { return fail(ErrorCode::kCancelled, "closed", errno); }

// Watches for `wanted` instead of `former`; not at all where that is nothing.
Result<void> change_interest(int polls, int socket, std::uint64_t data, std::uint32_t& former, std::uint32_t wanted) {
  if (former == wanted) return {};
  epoll_event event{.events = wanted, .data = {.u64 = data}};
  const int what = wanted == 0 ? EPOLL_CTL_DEL : former == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
  if (::epoll_ctl(polls, what, socket, &event) != 0)
    return fail(ErrorCode::kResourceExhausted, "it cannot be watched", errno);
  former = wanted;
  return {};
}

}  // namespace

// One client and, once it has greeted, gRPC's end for it.
struct Http2Gate::Link {
  Link(std::uint64_t own_key, Fd client, const Peer& from, Time now)
      : key(own_key), peer(from), outer(std::move(client)), inspector(now) {}

  const std::uint64_t key;
  const Peer peer;
  Fd outer;  // the client's
  Fd inner;  // gRPC's
  Http2Inspector inspector;
  Time deadline = kNever;
  std::size_t counted_bytes = 0;  // of messages that are not complete
  std::vector<std::byte> up;      // from the client, and not with gRPC yet
  std::size_t admitted = 0;       // of these, from the first on
  std::vector<std::byte> down;    // from gRPC, and not with the client yet
  bool refused = false;           // gRPC takes nothing more
  bool hung_up = false;           // gRPC has closed its end; its last words may still be on their way
  bool ended = false;             // and all of them have come
  std::uint32_t outer_events = 0;
  std::uint32_t inner_events = 0;
};

Http2Gate::Http2Gate(const Clock& clock, std::size_t incomplete_bytes_max, Enter enter, Refused refused, Fd polls,
                     Fd bell)
    : clock_(clock),
      incomplete_bytes_max_(incomplete_bytes_max),
      enter_(std::move(enter)),
      refused_(std::move(refused)),
      polls_(std::move(polls)),
      bell_(std::move(bell)),
      piece_(kPieceBytes) {}

Http2Gate::~Http2Gate() = default;

Result<std::unique_ptr<Http2Gate>> Http2Gate::create(const Clock& clock, std::size_t incomplete_bytes_max, Enter enter,
                                                     Refused refused) {
  Fd polls(::epoll_create1(EPOLL_CLOEXEC));
  Fd bell(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  epoll_event event{.events = EPOLLIN, .data = {.u64 = kBellKey}};
  if (!polls || !bell || ::epoll_ctl(polls.get(), EPOLL_CTL_ADD, bell.get(), &event) != 0)
    return fail(ErrorCode::kResourceExhausted, "no descriptor is left for the gRPC sockets' gate", errno);
  return std::unique_ptr<Http2Gate>(new Http2Gate(clock, incomplete_bytes_max, std::move(enter), std::move(refused),
                                                  std::move(polls), std::move(bell)));
}

void Http2Gate::add(Fd client, const Peer& peer) {
  {
    const std::scoped_lock lock(mutex_);
    arrivals_.push_back({std::move(client), peer});
  }
  ++connections_;
  wake();
}

void Http2Gate::wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(bell_.get(), &one, sizeof one);  // a full counter rings too
}

void Http2Gate::turn(std::chrono::milliseconds longest) {
  auto wait = longest;
  if (!paced_.empty()) wait = std::min(wait, kPacing);
  if (next_deadline_ != kNever) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(next_deadline_ - clock_.now());
    wait = std::clamp(left, std::chrono::milliseconds(0), wait);
  }
  std::array<epoll_event, kEventsAtOnce> events{};
  const int count = ::epoll_wait(polls_.get(), events.data(), kEventsAtOnce, static_cast<int>(wait.count()));
  for (const std::uint64_t key : std::exchange(paced_, {})) serve(key);
  for (const epoll_event& event : std::span(events).first(static_cast<std::size_t>(std::max(count, 0)))) {
    if (event.data.u64 == kBellKey) {
      take_arrivals();
      continue;
    }
    const auto found = links_.find(event.data.u64 / 2);
    if (found == links_.end()) continue;
    const bool from_client = event.data.u64 % 2 == 0;
    if (from_client && (event.events & (EPOLLHUP | EPOLLERR)) != 0) {  // nobody is there to take an answer
      close(*found->second, {ErrorCode::kCancelled, "closed by the client", 0});
      continue;
    }
    if (!from_client && (event.events & (EPOLLHUP | EPOLLERR)) != 0) hang_up(*found->second);
    serve(found->first);
  }
  if (clock_.now() >= next_deadline_) close_late();
}

void Http2Gate::take_arrivals() {
  std::uint64_t rings = 0;
  [[maybe_unused]] const auto read = ::read(bell_.get(), &rings, sizeof rings);
  std::vector<Arrival> arrivals;
  {
    const std::scoped_lock lock(mutex_);
    arrivals.swap(arrivals_);
  }
  for (Arrival& arrival : arrivals) {
    const std::uint64_t key = ++last_key_;
    auto link = std::make_unique<Link>(key, std::move(arrival.client), arrival.peer, clock_.now());
    set_deadline(*link, clock_.now() + kPatience);
    links_.emplace(key, std::move(link));
    serve(key);
  }
}

void Http2Gate::serve(std::uint64_t key) {
  const auto found = links_.find(key);
  if (found == links_.end()) return;
  Link& link = *found->second;
  for (int pieces = 0; pieces < kPiecesAtOnce; ++pieces) {
    const auto up = pass_up(link);
    if (!up) return close(link, up.error());
    const auto down = pass_down(link);
    if (!down) return close(link, down.error());
    if (!*up && !*down) break;
  }
  if (const auto watched = watch(link); !watched) return close(link, watched.error());
  if (link.inspector.paced() && !link.refused) paced_.insert(key);
  incomplete_bytes_ += link.inspector.incomplete_bytes() - link.counted_bytes;
  link.counted_bytes = link.inspector.incomplete_bytes();
  if (incomplete_bytes_ > incomplete_bytes_max_) close_largest();
}

void Http2Gate::close_largest() {
  const auto largest =
      std::ranges::max_element(links_, {}, [](const auto& each) { return each.second->counted_bytes; });
  close(*largest->second, {ErrorCode::kResourceExhausted,
                           fmt::format("{} of messages that are not complete, which is most of {} in all",
                                       format_bytes(largest->second->counted_bytes), format_bytes(incomplete_bytes_)),
                           0});
}

// A piece from the client to gRPC; whether anything moved.
Result<bool> Http2Gate::pass_up(Link& link) {
  if (link.ended) return false;
  if (link.refused) return throw_away(link);
  std::ranges::copy(link.up, piece_.begin());
  std::size_t count = link.up.size();
  if (link.admitted == 0 && !link.inspector.paced()) {
    const ssize_t got = ::recv(link.outer.get(), piece_.data() + count, piece_.size() - count, MSG_DONTWAIT);
    if (got == 0 || (got < 0 && !not_now())) return gone();
    count += static_cast<std::size_t>(std::max<ssize_t>(got, 0));
  }
  const std::span<std::byte> bytes = std::span(piece_).first(count);
  if (link.admitted == 0) {
    const auto admitted = link.inspector.admit(bytes, clock_.now());
    if (!admitted) return std::unexpected(admitted.error());
    link.admitted = *admitted;
    if (link.inspector.greeted() && !link.inner)
      if (const auto entered = let_in(link); !entered) return std::unexpected(entered.error());
  }
  std::size_t sent = 0;
  if (link.admitted != 0) {
    const ssize_t taken = ::send(link.inner.get(), bytes.data(), link.admitted, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (taken < 0 && !not_now()) {  // its last words come down yet
      link.refused = true;
      link.admitted = 0;
      link.up.clear();
      return true;
    }
    sent = static_cast<std::size_t>(std::max<ssize_t>(taken, 0));
  }
  const bool moved = sent != 0 || count > link.up.size();
  link.admitted -= sent;
  link.up.assign(bytes.begin() + static_cast<std::ptrdiff_t>(sent), bytes.begin() + static_cast<std::ptrdiff_t>(count));
  return moved;
}

// What a client still sends to a gRPC that has closed.
Result<bool> Http2Gate::throw_away(Link& link) {
  const ssize_t got = ::recv(link.outer.get(), piece_.data(), piece_.size(), MSG_DONTWAIT);
  if (got == 0 || (got < 0 && !not_now())) return gone();
  return got > 0;
}

// A piece from gRPC to the client; whether anything moved.
Result<bool> Http2Gate::pass_down(Link& link) {
  if (link.down.empty() && link.inner) {
    const ssize_t got = ::recv(link.inner.get(), piece_.data(), piece_.size(), MSG_DONTWAIT);
    if (got < 0 && not_now()) return false;
    if (got <= 0) {
      link.ended = true;
      link.inner.reset();  // and epoll has forgotten it
      hang_up(link);
    } else {
      const auto bytes = std::span<const std::byte>(piece_).first(static_cast<std::size_t>(got));
      link.inspector.answered(bytes);
      link.down.assign(bytes.begin(), bytes.end());
    }
  }
  if (link.ended && link.down.empty()) return fail(ErrorCode::kCancelled, "closed by gRPC");
  if (link.down.empty()) return false;
  const ssize_t sent = ::send(link.outer.get(), link.down.data(), link.down.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent < 0 && !not_now()) return gone();
  link.down.erase(link.down.begin(), link.down.begin() + std::max<ssize_t>(sent, 0));
  return sent > 0;
}

Result<void> Http2Gate::let_in(Link& link) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) != 0)
    return fail(ErrorCode::kResourceExhausted, "no descriptor is left for it: raise LimitNOFILE", errno);
  link.inner = Fd(ends[0]);
  link.deadline = kNever;
  return enter_(Fd(ends[1]), link.peer);
}

// From now on the client has so long to take what is left.
void Http2Gate::hang_up(Link& link) {
  if (!std::exchange(link.hung_up, true)) set_deadline(link, clock_.now() + kPatience);
}

// Both sides are always watched, for their end; gRPC's only until that has come, since bytes can be left behind it.
Result<void> Http2Gate::watch(Link& link) {
  const bool takes_more = !link.ended && (link.refused || (link.admitted == 0 && !link.inspector.paced()));
  const std::uint32_t outer = (takes_more ? EPOLLIN : 0u) | (link.down.empty() ? 0u : EPOLLOUT);
  const std::uint32_t inner =
      (link.down.empty() ? EPOLLIN : 0u) | (link.admitted == 0 ? 0u : EPOLLOUT) | (link.hung_up ? 0u : EPOLLHUP);
  const Result<void> watched =
      change_interest(polls_.get(), link.outer.get(), 2 * link.key, link.outer_events, outer | EPOLLHUP);
  if (!watched || !link.inner) return watched;
  return change_interest(polls_.get(), link.inner.get(), 2 * link.key + 1, link.inner_events, inner);
}

void Http2Gate::set_deadline(Link& link, Time deadline) {
  link.deadline = deadline;
  next_deadline_ = std::min(next_deadline_, deadline);
}

void Http2Gate::close_late() {
  std::vector<Link*> late;
  next_deadline_ = kNever;
  for (const auto& [key, link] : links_) {
    if (clock_.now() >= link->deadline)
      late.push_back(link.get());
    else
      next_deadline_ = std::min(next_deadline_, link->deadline);
  }
  for (Link* link : late)
    close(*link, {ErrorCode::kDeadlineExceeded,
                  link->hung_up ? "the last answers were not taken" : "no greeting of HTTP/2 came", 0});
}

void Http2Gate::close(Link& link, const Error& why) {
  if (why.code != ErrorCode::kCancelled) {
    spdlog::warn("a gRPC connection of pid {}, uid {} was closed: {}", link.peer.pid, link.peer.tenant.uid,
                 why.message);
    if (refused_) refused_(link.peer, why);
  }
  incomplete_bytes_ -= link.counted_bytes;
  links_.erase(link.key);
  --connections_;
}

}  // namespace terrace::front
