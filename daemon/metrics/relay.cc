// SPDX-License-Identifier: Apache-2.0
#include "metrics/relay.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <span>
#include <thread>
#include <utility>
#include <vector>

namespace terrace::metrics {
namespace {

constexpr int kLookMs = 1000;  // for connections that are idle
constexpr std::size_t kPieceBytes = 16 * 1024;

bool not_now() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

// One way of a connection: what one side sent and the other has not taken. Nothing more is read meanwhile.
class Way {
 public:
  bool has_bytes() const { return begin_ != end_; }
  // False: the connection is over.
  bool turn(int from, int to) {
    if (!has_bytes()) {
      const ssize_t got = ::recv(from, bytes_.data(), bytes_.size(), MSG_DONTWAIT);
      if (got <= 0) return got < 0 && not_now();
      begin_ = 0;
      end_ = static_cast<std::size_t>(got);
    }
    const ssize_t sent = ::send(to, bytes_.data() + begin_, end_ - begin_, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) return not_now();
    begin_ += static_cast<std::size_t>(sent);
    return true;
  }

 private:
  std::array<std::byte, kPieceBytes> bytes_{};
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

struct Connection {
  Fd client;
  Fd server;
  Way up;
  Way down;
  Time last{};  // that something came or went
};

class RelayThread final : public Relay {
 public:
  RelayThread(Fd listening, Fd bell, std::uint16_t port)
      : listening_(std::move(listening)),
        bell_(std::move(bell)),
        port_(port),
        thread_([this](const std::stop_token& stop) {
          while (!stop.stop_requested()) turn();
        }) {}
  RelayThread(const RelayThread&) = delete;
  RelayThread& operator=(const RelayThread&) = delete;
  ~RelayThread() override {
    thread_.request_stop();
    ::eventfd_write(bell_.get(), 1);
  }

 private:
  void turn() {
    std::vector<pollfd> polls{{bell_.get(), POLLIN, 0}};
    polls.push_back({connections_.size() < kConnectionsMax ? listening_.get() : -1, POLLIN, 0});
    for (const auto& each : connections_) {
      polls.push_back(interest(each->client.get(), each->up, each->down));
      polls.push_back(interest(each->server.get(), each->down, each->up));
    }
    if (::poll(polls.data(), polls.size(), kLookMs) < 0) return;
    constexpr std::size_t kFirst = 2;
    for (std::size_t i = 0; i < connections_.size(); ++i)
      if (!pass(*connections_[i], std::span(polls).subspan(kFirst + 2 * i, 2))) connections_[i].reset();
    std::erase(connections_, nullptr);
    if (polls[1].revents != 0) accept();
  }
  // Of one side, from which `in` reads and to which `out` writes.
  static pollfd interest(int side, const Way& in, const Way& out) {
    const int events = (in.has_bytes() ? 0 : POLLIN) | (out.has_bytes() ? POLLOUT : 0);
    return {side, static_cast<std::int16_t>(events), 0};
  }
  // False: it is over.
  bool pass(Connection& connection, std::span<const pollfd> ready) const {
    if (ready[0].revents == 0 && ready[1].revents == 0) return clock_.now() - connection.last < kIdleMax;
    connection.last = clock_.now();
    return connection.up.turn(connection.client.get(), connection.server.get()) &&
           connection.down.turn(connection.server.get(), connection.client.get());
  }
  void accept() {
    Fd client(::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    Fd server(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(port_);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (!client || !server || ::connect(server.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0) return;
    auto connection = std::make_unique<Connection>();
    connection->client = std::move(client);
    connection->server = std::move(server);
    connection->last = clock_.now();
    connections_.push_back(std::move(connection));
  }

  const MonotonicClock clock_;
  const Fd listening_;
  const Fd bell_;
  const std::uint16_t port_;
  std::vector<std::unique_ptr<Connection>> connections_;  // the thread's
  std::jthread thread_;
};

}  // namespace

Result<std::unique_ptr<Relay>> Relay::create(Fd listening, std::uint16_t port) {
  Fd bell(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!bell) return fail(ErrorCode::kResourceExhausted, "no descriptor is left for the metrics", errno);
  return std::make_unique<RelayThread>(std::move(listening), std::move(bell), port);
}

}  // namespace terrace::metrics
