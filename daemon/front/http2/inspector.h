// SPDX-License-Identifier: Apache-2.0
// What an HTTP/2 client may send on to gRPC, and when: seen from the frames' headers alone (RFC 9113), as they go by.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>

#include "base/time.h"
#include "terrace/error.h"

namespace terrace::front {

// gRPC 1.51 keeps what it is sent in header blocks without an end and strings without one, takes streams without number
// from a client that does not acknowledge its settings, and begins calls faster than it ends those that were reset: a
// few megabytes make it take gigabytes. It judges a message's length when it has the whole message, and if that takes
// more memory than it may, ends any client's calls. Here all of these have a bound. Everything else gRPC bounds by
// itself: flow control, pings, settings, size of a decoded header list. Not thread-safe.
class Http2Inspector {
 public:
  static constexpr std::size_t kPrefaceBytes = 24;
  static constexpr std::size_t kFrameHeaderBytes = 9;
  static constexpr std::uint32_t kHeaderBlockBytesMax = 64 * 1024;  // HEADERS with its CONTINUATIONs; gRPC takes 8 KiB
  static constexpr std::uint32_t kHeaderBlockFramesMax = 16;
  static constexpr std::uint32_t kUnacknowledgedMax = 1024;  // calls before the client knows how many it may have
  static constexpr std::size_t kCallsMax = 2048;             // at once; gRPC's own bound is half of it
  // Calls reset by either side: so many at once, then one per period; until then neither resets nor new calls go on.
  static constexpr std::int32_t kResetsMax = 256;
  static constexpr Duration kResetPeriod = std::chrono::milliseconds(1);
  // A message that claims more claims one byte more from here on, which gRPC refuses when it has come.
  static constexpr std::uint32_t kMessageBytesMax = (1u << 24) - 1;

  explicit Http2Inspector(Time now) : last_refill_(now) {}

  // How many of `bytes`, the next ones from the client, may go on; the rest is to be shown again, with more behind it
  // or when paced() is over. With at least kPrefaceBytes there is progress, unless it is paced. May change lengths in
  // them, as above. InvalidArgument: it does not speak HTTP/2; ResourceExhausted: it passes a bound. Nothing more may
  // go on then.
  Result<std::size_t> admit(std::span<std::byte> bytes, Time now);
  // Looks at what gRPC sends to the client, all of it.
  void answered(std::span<const std::byte> bytes);

  // Whether the preface has come, and gRPC may have the connection.
  bool greeted() const { return greeted_; }
  // Whether the last admit() stopped because of too many resets, for a period at least, or before the rest of a message
  // that is too long, until gRPC has refused it.
  bool paced() const { return paced_; }
  // Bytes that went on of messages that are not complete, of calls that have not ended.
  std::size_t incomplete_bytes() const { return incomplete_bytes_; }

 private:
  struct Frame {
    std::uint32_t bytes;
    std::uint8_t type;
    std::uint8_t flags;
    std::uint32_t stream;
  };
  // The message that a call is sending: a flag, its length in four bytes, and itself.
  struct Message {
    std::uint32_t prefix_bytes = 0;  // that have come
    std::uint32_t length = 0;
    std::uint32_t come = 0;
    bool too_long = false;
    bool awaits_refusal = false;  // it is too long, and has come as far as gRPC hears of
  };
  static Frame read_header(std::span<const std::byte> bytes);
  Result<bool> greets(std::span<const std::byte> bytes);
  Result<void> judge(const Frame& frame);
  Result<void> add_to_block(const Frame& frame);
  bool may_reset(Time now);
  void pass_data(std::span<std::byte> bytes);
  void pass_prefix(Message& message, std::byte& byte);
  bool awaits_refusal(std::uint32_t stream) const;
  void end_call(std::uint32_t stream);

  bool greeted_ = false;
  bool paced_ = false;
  bool acknowledged_ = false;
  bool in_block_ = false;
  std::uint32_t payload_left_ = 0;
  std::map<std::uint32_t, Message> messages_;  // of the calls that may still send
  std::uint32_t receiving_ = 0;                // the call that the payload under way belongs to; 0: it is no data
  std::uint32_t last_call_ = 0;
  std::uint32_t ending_ = 0;  // the call that ends with this payload
  std::size_t incomplete_bytes_ = 0;
  std::uint32_t block_bytes_ = 0;
  std::uint32_t block_frames_ = 0;
  std::uint32_t unacknowledged_ = 0;
  std::int64_t resets_ = kResetsMax;  // that may still come; below zero where gRPC itself made more
  Time last_refill_;

  // Of the answers: what is left of a payload, and a header that is not there in whole yet.
  std::uint32_t answer_left_ = 0;
  std::size_t answer_held_ = 0;
  std::array<std::byte, kFrameHeaderBytes> answer_header_{};
};

}  // namespace terrace::front
