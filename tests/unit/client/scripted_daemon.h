// SPDX-License-Identifier: Apache-2.0
// The daemon's end of one session, played by a test step by step: real sockets, real shared memory, no engine.
#pragma once

#include <array>
#include <filesystem>
#include <future>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/mapping.h"
#include "shm/log.h"
#include "shm/message.h"
#include "shm/region.h"
#include "shm/ring.h"
#include "terrace/client.h"

namespace terrace::client {

inline constexpr std::uint64_t kSegmentBytes = 2ull << 20;
inline constexpr std::uint64_t kRangeBytes = 8ull << 20;

// A request as it came through the ring.
struct Asked {
  shm::Submission submission;
  std::vector<std::uint64_t> handles;
  std::vector<shm::Mode> modes;  // of an acquire
  std::vector<shm::CreateRecord> records;
};

// Every step that waits aborts the test after 60 s. Not thread-safe, but for what table() and words are.
class ScriptedDaemon {
 public:
  // Listens on a socket in a folder of its own.
  ScriptedDaemon();
  ScriptedDaemon(const ScriptedDaemon&) = delete;
  ScriptedDaemon& operator=(const ScriptedDaemon&) = delete;
  ~ScriptedDaemon();

  std::string path() const { return (folder_ / "data.sock").string(); }

  // The connection, and what the client says first.
  shm::Hello accept();
  // Accepts a connection and leaves its greeting unread.
  void take_connection();
  // Opens the session: host mapped twice, device:0 once, 8 MiB of each.
  void welcome();
  // accept() and welcome(), while the client connects with these options.
  Client open(ConnectOptions options = {});

  void send(const void* bytes, std::size_t size, const std::vector<int>& descriptors = {}) const;
  // The next message from the client; empty when it has closed the connection.
  std::vector<std::byte> receive() const;
  // Whether anything waits to be received (or the client has closed).
  bool has_message() const;
  void hang_up() { connection_.reset(); }
  // hang_up(), and nobody listens on the socket until listen().
  void die();
  void listen();
  // The connection, on which the client asks to go on.
  shm::Resume accept_resume();
  // Empties the rings, as a new daemon does, and forgets what was asked.
  void reset_rings();
  // Every segment again, reset_rings(), the next epoch, and the answer to accept_resume().
  void resume();
  void refuse_to_resume(ErrorCode code, const std::string& message);

  // Passes a segment; its memory, as the daemon sees it.
  std::byte* pass_segment(std::uint32_t place, std::uint64_t offset);
  // A successor does not have it.
  void lose_segment(std::uint32_t place, std::uint64_t offset);
  void retire_segment(std::uint32_t place, std::uint64_t offset) const;

  // The next request; waits for the doorbell.
  Asked next();
  // The same if there is one.
  std::optional<Asked> next_if_any();
  // Whether the doorbell rang since it was last looked at. Never waits.
  bool rung() const;
  void answer(const Asked& asked, const std::vector<std::uint64_t>& result = {});
  void refuse(const Asked& asked, ErrorCode code, const std::string& message);
  void complete(const shm::Completion& completion);

  // Creates a tensor as the client asks for it, in slot `slot`, first life, nothing published.
  Tensor create(Client& client, const std::string& name, std::uint64_t bytes, std::uint32_t slot);
  // Publishes the copy of `slot` with this word (its incarnation is 1).
  void publish(std::uint32_t slot, shm::Word word, std::uint64_t offset, std::uint32_t place = shm::kPlaceHost);
  shm::Word word(std::uint32_t slot) const { return shm::Word::unpack(region_.table[slot].word.load()); }

  const shm::RegionView& region() const { return region_; }

  static constexpr std::array<std::uint8_t, 16> kToken{7, 6, 5, 4, 3, 2, 1};
  static std::uint64_t handle(std::uint32_t slot) { return std::uint64_t{1} << 32 | slot; }

 private:
  template <typename First>
  First accept_first();

  std::filesystem::path folder_;
  Fd listener_;
  Fd connection_;
  Fd doorbell_;
  AddressRange memory_;
  shm::RegionView region_;
  shm::RingConsumer<shm::Submission> submissions_;
  shm::RingProducer<shm::Completion> completions_;
  struct Segment {
    std::uint32_t place = 0;
    std::uint64_t offset = 0;
    Fd file;
    AddressRange memory;
  };
  void pass(const Segment& segment) const;
  std::vector<Segment> segments_;
};

// Looks until `condition` holds; false after 60 s.
bool eventually(const std::function<bool()>& condition);

// Runs a blocking client call beside the script.
template <typename Call>
auto beside(Call call) {
  return std::async(std::launch::async, std::move(call));
}

}  // namespace terrace::client
