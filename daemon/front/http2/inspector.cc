// SPDX-License-Identifier: Apache-2.0
#include "front/http2/inspector.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

namespace terrace::front {
namespace {

constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
static_assert(kPreface.size() == Http2Inspector::kPrefaceBytes);

// RFC 9113, 6
constexpr std::uint8_t kData = 0;
constexpr std::uint8_t kHeaders = 1;
constexpr std::uint8_t kReset = 3;
constexpr std::uint8_t kSettings = 4;
constexpr std::uint8_t kContinuation = 9;
constexpr std::uint8_t kAcknowledges = 1;
constexpr std::uint8_t kEndsStream = 1;
constexpr std::uint8_t kEndsHeaders = 4;
constexpr std::uint8_t kPadded = 8;

constexpr std::uint32_t kMessagePrefixBytes = 5;  // gRPC over HTTP/2: Length-Prefixed-Message

}  // namespace

Http2Inspector::Frame Http2Inspector::read_header(std::span<const std::byte> bytes) {
  const auto at = [&](std::size_t i) { return std::to_integer<std::uint8_t>(bytes[i]); };
  return {
      .bytes = std::uint32_t{at(0)} << 16 | std::uint32_t{at(1)} << 8 | at(2),
      .type = at(3),
      .flags = at(4),
      .stream = std::uint32_t{at(5) & 0x7Fu} << 24 | std::uint32_t{at(6)} << 16 | std::uint32_t{at(7)} << 8 | at(8)};
}

Result<std::size_t> Http2Inspector::admit(std::span<std::byte> bytes, Time now) {
  std::size_t passed = 0;
  paced_ = false;
  if (!greeted_) {
    const auto greeted = greets(bytes);
    if (!greeted) return std::unexpected(greeted.error());
    if (!*greeted) return 0;
    greeted_ = true;
    passed = kPrefaceBytes;
  }
  while (true) {
    const auto piece = static_cast<std::uint32_t>(std::min<std::size_t>(payload_left_, bytes.size() - passed));
    pass_data(bytes.subspan(passed, piece));
    payload_left_ -= piece;
    passed += piece;
    if (payload_left_ == 0) end_call(std::exchange(ending_, 0));
    if (payload_left_ != 0 || bytes.size() - passed < kFrameHeaderBytes) return passed;
    const Frame frame = read_header(bytes.subspan(passed, kFrameHeaderBytes));
    paced_ = ((frame.type == kReset || frame.type == kHeaders) && !may_reset(now)) ||
             (frame.type == kData && awaits_refusal(frame.stream));
    if (paced_) return passed;
    if (const auto good = judge(frame); !good) return std::unexpected(good.error());
    passed += kFrameHeaderBytes;
    payload_left_ = frame.bytes;
  }
}

Result<bool> Http2Inspector::greets(std::span<const std::byte> bytes) {
  const std::size_t count = std::min(bytes.size(), kPrefaceBytes);
  if (count != 0 && std::memcmp(bytes.data(), kPreface.data(), count) != 0)
    return fail(ErrorCode::kInvalidArgument, "it does not speak HTTP/2");
  return count == kPrefaceBytes;
}

Result<void> Http2Inspector::judge(const Frame& frame) {
  receiving_ = 0;
  if (frame.type == kData || frame.type == kHeaders) ending_ = (frame.flags & kEndsStream) != 0 ? frame.stream : 0;
  switch (frame.type) {
    case kData:
      // No gRPC library pads, and where its messages begin would be another question.
      if ((frame.flags & kPadded) != 0)
        return fail(ErrorCode::kInvalidArgument, "padded data, which gRPC does not send");
      receiving_ = frame.stream;
      return {};
    case kReset:
      --resets_;
      end_call(frame.stream);
      return {};
    case kSettings:
      acknowledged_ = acknowledged_ || (frame.flags & kAcknowledges) != 0;
      return {};
    case kHeaders:
      if (!acknowledged_ && ++unacknowledged_ > kUnacknowledgedMax)
        return fail(ErrorCode::kResourceExhausted,
                    fmt::format("{} calls without an acknowledgement of our settings", unacknowledged_));
      if (frame.stream % 2 == 0)
        return fail(ErrorCode::kInvalidArgument, "a call by a number that clients do not have");
      if (frame.stream > last_call_) messages_.try_emplace(last_call_ = frame.stream);
      if (messages_.size() > kCallsMax)
        return fail(ErrorCode::kResourceExhausted, fmt::format("more than {} calls at once", kCallsMax));
      block_bytes_ = block_frames_ = 0;
      return add_to_block(frame);
    case kContinuation:
      return in_block_ ? add_to_block(frame) : Result<void>{};  // one of no block is gRPC's to refuse
    default:
      return {};
  }
}

Result<void> Http2Inspector::add_to_block(const Frame& frame) {
  block_bytes_ += frame.bytes;  // of 24 bits each, and the bound is below
  if (block_bytes_ > kHeaderBlockBytesMax || ++block_frames_ > kHeaderBlockFramesMax)
    return fail(ErrorCode::kResourceExhausted, fmt::format("a header block of more than {} bytes or {} frames",
                                                           kHeaderBlockBytesMax, kHeaderBlockFramesMax));
  in_block_ = (frame.flags & kEndsHeaders) == 0;
  return {};
}

bool Http2Inspector::may_reset(Time now) {
  const std::int64_t periods = (now - last_refill_) / kResetPeriod;
  resets_ = std::min<std::int64_t>(resets_ + periods, kResetsMax);
  last_refill_ = last_refill_ + periods * kResetPeriod;
  return resets_ > 0;
}

// What a call sends: one message after the other.
void Http2Inspector::pass_data(std::span<std::byte> bytes) {
  const auto call = messages_.find(receiving_);
  while (call != messages_.end() && !bytes.empty()) {
    Message& message = call->second;
    if (message.prefix_bytes < kMessagePrefixBytes) {
      pass_prefix(message, bytes.front());
      bytes = bytes.subspan(1);
    } else {
      const auto piece = static_cast<std::uint32_t>(std::min<std::size_t>(message.length - message.come, bytes.size()));
      message.come += piece;
      incomplete_bytes_ += piece;
      bytes = bytes.subspan(piece);
    }
    if (message.prefix_bytes < kMessagePrefixBytes || message.come < message.length) continue;
    incomplete_bytes_ -= message.come;
    if (message.too_long) {
      message.awaits_refusal = true;
      message.come = receiving_ = 0;
      return;
    }
    message = {};
  }
}

// The flag, and the length from its high byte on. A length of more than 24 bits becomes the least of these.
void Http2Inspector::pass_prefix(Message& message, std::byte& byte) {
  static_assert(kMessageBytesMax == (1u << 24) - 1);
  if (message.too_long) byte = std::byte{0};
  if (message.prefix_bytes == 1 && byte != std::byte{0}) {
    byte = std::byte{1};
    message.too_long = true;
  }
  if (message.prefix_bytes++ != 0) message.length = message.length << 8 | std::to_integer<std::uint32_t>(byte);
}

// Until gRPC has refused a message, it would take what follows for messages too.
bool Http2Inspector::awaits_refusal(std::uint32_t stream) const {
  const auto call = messages_.find(stream);
  return call != messages_.end() && call->second.awaits_refusal;
}

void Http2Inspector::end_call(std::uint32_t stream) {
  const auto call = messages_.find(stream);
  if (call == messages_.end()) return;
  incomplete_bytes_ -= call->second.come;
  messages_.erase(call);
}

void Http2Inspector::answered(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::size_t wanted = answer_left_ != 0 ? answer_left_ : kFrameHeaderBytes - answer_held_;
    const auto piece = bytes.first(std::min(wanted, bytes.size()));
    bytes = bytes.subspan(piece.size());
    if (answer_left_ != 0) {
      answer_left_ -= static_cast<std::uint32_t>(piece.size());
      continue;
    }
    std::ranges::copy(piece, answer_header_.begin() + static_cast<std::ptrdiff_t>(answer_held_));
    answer_held_ += piece.size();
    if (answer_held_ != kFrameHeaderBytes) continue;
    const Frame frame = read_header(answer_header_);
    if (frame.type == kReset) --resets_;
    const bool carries_an_end = frame.type == kData || frame.type == kHeaders;
    if (frame.type == kReset || (carries_an_end && (frame.flags & kEndsStream) != 0)) end_call(frame.stream);
    answer_left_ = frame.bytes;
    answer_held_ = 0;
  }
}

}  // namespace terrace::front
