// SPDX-License-Identifier: Apache-2.0
// Stands between gRPC's clients and gRPC: lets in who greets in time, and passes on what an Http2Inspector admits.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "base/fd.h"
#include "base/time.h"
#include "front/gateway/gateway.h"
#include "front/http2/inspector.h"
#include "terrace/error.h"

namespace terrace::front {

// Connections of its own, and for each that has greeted a pair of sockets whose other end gRPC has. What one side does
// not take, the other does not send: no more than kPieceBytes lie here for a connection and direction.
class Http2Gate {
 public:
  // A client sends HTTP/2's preface so soon after it has connected; and takes what gRPC said last so soon after gRPC
  // has closed.
  static constexpr Duration kPatience = std::chrono::seconds(10);
  static constexpr std::size_t kPieceBytes = 64 * 1024;

  // Gives gRPC a connected, non-blocking stream socket; called inside turn(). An error closes the client's.
  using Enter = std::move_only_function<Result<void>(Fd connection, const Peer& peer)>;
  // Hears of each connection that was closed for what came over it, or did not; called inside turn().
  using Refused = std::move_only_function<void(const Peer& peer, const Error& why)>;

  // `clock` outlives the gate. `incomplete_bytes_max`: of messages that are not complete, over all connections; when
  // there are more, who has sent most of them is closed. ResourceExhausted: no descriptor is left.
  static Result<std::unique_ptr<Http2Gate>> create(const Clock& clock, std::size_t incomplete_bytes_max, Enter enter,
                                                   Refused refused = {});
  ~Http2Gate();
  Http2Gate(const Http2Gate&) = delete;
  Http2Gate& operator=(const Http2Gate&) = delete;

  // Thread-safe, these three. add() takes a connected, non-blocking stream socket; it is counted from then on.
  void add(Fd client, const Peer& peer);
  std::size_t connections() const { return connections_; }
  // Ends the turn under way, or the next one, at once.
  void wake();

  // Waits until there is something to do, `longest` at most; does it, and closes whose time is up. One thread.
  void turn(std::chrono::milliseconds longest);

 private:
  struct Link;

  Http2Gate(const Clock& clock, std::size_t incomplete_bytes_max, Enter enter, Refused refused, Fd polls, Fd bell);
  void take_arrivals();
  void serve(std::uint64_t key);
  void close_late();
  void close_largest();
  Result<bool> pass_up(Link& link);
  Result<bool> throw_away(Link& link);
  Result<bool> pass_down(Link& link);
  Result<void> let_in(Link& link);
  void hang_up(Link& link);
  Result<void> watch(Link& link);
  void set_deadline(Link& link, Time deadline);
  void close(Link& link, const Error& why);

  const Clock& clock_;
  const std::size_t incomplete_bytes_max_;
  Enter enter_;
  Refused refused_;
  const Fd polls_;  // epoll
  const Fd bell_;   // eventfd
  std::map<std::uint64_t, std::unique_ptr<Link>> links_;
  std::set<std::uint64_t> paced_;
  std::size_t incomplete_bytes_ = 0;  // as counted_bytes of all links come to
  std::uint64_t last_key_ = 0;
  Time next_deadline_ = kNever;   // none is earlier
  std::vector<std::byte> piece_;  // what is passed just now
  std::atomic<std::size_t> connections_ = 0;

  struct Arrival {
    Fd client;
    Peer peer;
  };
  std::mutex mutex_;
  std::vector<Arrival> arrivals_;
};

}  // namespace terrace::front
