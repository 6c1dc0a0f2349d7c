// SPDX-License-Identifier: Apache-2.0
#include "mover/chunk.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"

namespace terrace::mover {
namespace {

// Interrupted, refused for the moment, or without progress: more often in one chunk is an error.
constexpr unsigned kRetriesMax = 64;

bool is_passing(int error) { return error == EINTR || error == EAGAIN; }

// A word of the pattern: no other place's, and not this place's of another time.
std::uint64_t pattern_word(const tier::ChunkName& name, std::uint64_t word) {
  constexpr std::uint64_t kOdd = 0x9e37'79b9'7f4a'7c15;  // 2^64 by the golden ratio (Knuth, TAOCP 6.4)
  return ((name.tensor * kOdd ^ name.version) * kOdd ^ name.chunk) * kOdd + word * kOdd;
}

// What the kernel says where the device has given the bytes up, unlike one that is gone or does not answer: those may
// come back.
bool is_of_the_medium(int error) { return error == EIO || error == ENODATA || error == EILSEQ; }

}  // namespace

Way Chunk::way() const {
  return {.path = work_.path,
          .from_gpu = work_.from_gpu != nullptr,
          .to_gpu = work_.to_gpu != nullptr,
          .pinned = work_.pinned};
}

void Chunk::start(const ChunkWork& work) {
  TERRACE_CHECK(work.bytes > 0 && work.bytes <= work.padded_bytes);
  const bool by_cpu = work.path == Path::kCopy && work.from_gpu == nullptr && work.to_gpu == nullptr;
  TERRACE_CHECK(work.padded_bytes <= (work.pinned ? kUnawaitedChunkBytes
                                      : by_cpu    ? kCopyChunkBytes
                                                  : tier::kChunkBytes));
  TERRACE_CHECK(work.from_gpu == nullptr || work.to_gpu == nullptr || work.from_gpu == work.to_gpu);
  work_ = work;
  retries_ = 0;
  gpu_failed_ = false;
  source_ = work_.from_gpu != nullptr || work_.path == Path::kProve ? spare_ : work_.from;
  take(Event::kStarted);
}

void Chunk::take(Event event) {
  const Move move = next_move(step_, event, way());
  switch (move.action) {
    case Action::kCompute:
      step_ = move.step;
      compute();
      return;
    case Action::kCopyByGpu:
      step_ = move.step;
      begin_gpu();
      return;
    case Action::kTransfer:
      if (move.step == Step::kReadAgain)
        ++(event == Event::kDiffers ? surroundings_.counts.reread_chunks : surroundings_.counts.io_retries);
      step_ = move.step;
      begin_io();
      return;
    case Action::kGoOn:
      continue_io();
      return;
    case Action::kFinish:
      finish();
      return;
    case Action::kFailIo:
    case Action::kFailShort:
    case Action::kFailChecks:
    case Action::kFailGpu:
      fail_with(move.action);
      return;
  }
}

// Small ones are done here: a hand-over to a worker and back costs more.
void Chunk::compute() {
  // The last one in the spare may have been somebody else's.
  if (step_ == Step::kSum && work_.from_gpu != nullptr)
    std::memset(spare_ + work_.bytes, 0, work_.padded_bytes - work_.bytes);
  if (work_.bytes > surroundings_.inline_bytes_max) {
    surroundings_.workers.submit(*this, Workers::Lane::kCopy);
    return;
  }
  run();
  done();
}

void Chunk::run() {
  switch (step_) {
    case Step::kCopy:
      if (work_.path == Path::kZero) {
        std::memset(work_.to, 0, work_.padded_bytes);
      } else {
        std::memmove(work_.to, work_.from, work_.bytes);
      }
      break;
    case Step::kStage:
      std::memcpy(spare_, work_.from, work_.bytes);
      break;
    case Step::kUnstage:
      std::memcpy(work_.to, spare_, work_.bytes);
      break;
    case Step::kSum:
      sum_ = tier::checksum(work_.name, {source_, work_.bytes});
      break;
    case Step::kCheck:
    case Step::kCheckAgain:
      sum_ = tier::checksum(work_.name, {target_, work_.bytes});
      // Only what was checked where nobody else can write is handed on.
      if (step_ == Step::kCheckAgain && work_.to_gpu == nullptr) std::memcpy(work_.to, target_, work_.bytes);
      break;
    case Step::kPattern:
      for (std::uint64_t word = 0; word < work_.padded_bytes / sizeof word; ++word) {
        const std::uint64_t value = pattern_word(work_.name, word);
        std::memcpy(spare_ + word * sizeof value, &value, sizeof value);
      }
      break;
    case Step::kComparePattern:
      sum_ = 0;
      for (std::uint64_t word = 0; word < work_.padded_bytes / sizeof word; ++word) {
        std::uint64_t value = 0;
        std::memcpy(&value, spare_ + word * sizeof value, sizeof value);
        sum_ += value == pattern_word(work_.name, word) ? 0 : 1;
      }
      break;
    default:
      TERRACE_CHECK(false);
  }
}

// Of what was computed.
Event Chunk::outcome() {
  if (step_ != Step::kCheck && step_ != Step::kCheckAgain && step_ != Step::kComparePattern) return Event::kDone;
  // The spare goes back to the system; where it is pinned, the GPUs know its pages, and these must stay.
  if (step_ != Step::kCheck && !surroundings_.spare_is_pinned) (void)madvise(spare_, tier::kChunkBytes, MADV_DONTNEED);
  const std::uint64_t expected = step_ == Step::kComparePattern ? 0 : surroundings_.block->checksums().get(work_.entry);
  return sum_ == expected ? Event::kMatches : Event::kDiffers;
}

// What was begun is awaited though something after it was refused: its memory must not go before.
void Chunk::begin_gpu() {
  CudaLink& link = *(work_.to_gpu != nullptr ? work_.to_gpu : work_.from_gpu);
  const CudaLink::Way direction = step_ == Step::kUp     ? CudaLink::Way::kUp
                                  : step_ == Step::kDown ? CudaLink::Way::kDown
                                                         : CudaLink::Way::kWithin;
  CudaLane& lane = link.lane(direction, work_.urgency);
  gpu_result_ = begin_gpu_copies(lane);
  lane.await(*this);
}

Result<void> Chunk::begin_gpu_copies(CudaLane& lane) {
  if (work_.path == Path::kZero) return lane.zero(work_.to, work_.padded_bytes);
  if (step_ == Step::kWithin) return work_.to_gpu->move(lane, work_.to, work_.from, work_.bytes);
  if (!work_.pinned) {
    return step_ == Step::kUp ? lane.up(work_.to, spare_, work_.bytes, work_.bytes)
                              : lane.down(spare_, work_.from, work_.bytes, work_.bytes);
  }
  Result<void> begun;
  for (std::uint64_t at = 0; begun && at < work_.bytes;) {
    const std::byte* host = step_ == Step::kUp ? work_.from + at : work_.to + at;
    const std::uint64_t room = surroundings_.pinned.run_bytes(host, PinnedMemory::kSliceBytes);
    TERRACE_CHECK(room > 0);
    const std::uint64_t run = std::min(room, work_.bytes - at);
    begun = step_ == Step::kUp ? lane.up(work_.to + at, host, run, room)
                               : lane.down(work_.to + at, work_.from + at, run, room);
    at += run;
  }
  return begun;
}

void Chunk::copied(Result<void> result) {
  if (gpu_result_) gpu_result_ = std::move(result);
  take(gpu_result_ ? Event::kDone : Event::kGpuFailed);
}

void Chunk::begin_io() {
  target_ = step_ == Step::kRead && work_.to_gpu == nullptr ? work_.to : spare_;
  if (step_ == Step::kReadPattern) std::memset(spare_, 0, work_.padded_bytes);
  io_bytes_ = 0;
  surroundings_.io.enter(*this, work_.urgency);
}

// Where the next byte lies, and how many follow it in one run.
tier::BlockFile::Piece Chunk::next_piece() const {
  std::uint64_t position = work_.name.chunk * tier::kChunkBytes + io_bytes_;
  const std::uint64_t wanted = work_.padded_bytes - io_bytes_;
  for (const tier::Extent& extent : work_.pieces->span()) {
    if (position < extent.bytes) {
      return surroundings_.block->locate(extent.offset + position, std::min(wanted, extent.bytes - position));
    }
    position -= extent.bytes;
  }
  check_failed("the pieces hold the tensor", __FILE__, __LINE__);
}

void Chunk::continue_io() {
  const auto piece = next_piece();
  asked_bytes_ = piece.bytes;
  Ring& ring = surroundings_.ring;
  if (writes(step_)) {
    const std::span<const std::byte> bytes(source_ + io_bytes_, piece.bytes);
    ring.write(piece.file, bytes, piece.offset, *this, surroundings_.buffers.find(bytes));
  } else {
    const std::span<std::byte> bytes(target_ + io_bytes_, piece.bytes);
    ring.read(piece.file, bytes, piece.offset, *this, surroundings_.buffers.find(bytes));
  }
}

// What the CPU does for small ones on this thread, to check them or to sum the next, waits until whatever follows them
// on the disk is there. Of large ones it is a worker's, who should begin.
void Chunk::completed(int result, bool /*more*/) {
  const Event event = count_io(result);
  if (event != Event::kPartly) surroundings_.io.leave();
  if (event == Event::kDone && work_.bytes <= surroundings_.inline_bytes_max) {
    surroundings_.ring.later(*this, work_.bytes);
  } else {
    take(event);
  }
}

Event Chunk::count_io(int result) {
  MoverCounts& counts = surroundings_.counts;
  if (result < 0) {
    io_error_ = -result;
    if (!is_passing(io_error_)) return Event::kRefused;
    if (++retries_ > kRetriesMax) return Event::kGivenUp;
    ++counts.io_retries;
    return Event::kPartly;
  }
  const auto got = static_cast<std::uint64_t>(result);
  TERRACE_CHECK(got <= asked_bytes_);
  (writes(step_) ? counts.block_written_bytes : counts.block_read_bytes) += got;
  if (got == asked_bytes_) {
    io_bytes_ += got;
    return io_bytes_ < work_.padded_bytes ? Event::kPartly : Event::kDone;
  }
  // Short: what is whole counts, and direct I/O goes on where that ends.
  const std::uint64_t whole = align_down(got, kPageBytes);
  if (whole == 0 && ++retries_ > kRetriesMax) {
    io_error_ = EIO;
    return Event::kEndedEarly;
  }
  ++counts.io_retries;
  io_bytes_ += whole;
  return Event::kPartly;
}

void Chunk::finish() {
  if (work_.path == Path::kCopy || work_.path == Path::kZero) surroundings_.counts.copied_bytes += work_.bytes;
  if (work_.path == Path::kToBlock) surroundings_.block->checksums().set(work_.entry, sum_);
  end({});
}

void Chunk::fail_with(Action action) {
  MoverCounts& counts = surroundings_.counts;
  if (action == Action::kFailGpu) {
    gpu_failed_ = true;
    end(std::move(gpu_result_));
  } else if (action == Action::kFailChecks) {
    ++(work_.path == Path::kProve ? counts.io_errors : counts.mismatched_chunks);
    end(mismatch());
  } else {
    ++counts.io_errors;
    end(action == Action::kFailIo ? io_failure() : short_file());
  }
}

Result<void> Chunk::io_failure() const {
  const auto piece = next_piece();
  const bool full = io_error_ == ENOSPC || io_error_ == EDQUOT || io_error_ == EFBIG || io_error_ == ENOMEM;
  const bool lost = !writes(step_) && work_.path != Path::kProve && is_of_the_medium(io_error_);
  return fail(full   ? ErrorCode::kResourceExhausted
              : lost ? ErrorCode::kDataLoss
                     : ErrorCode::kInternal,
              fmt::format("{} {} at offset {} of the block tier's file {}: {}{}", writes(step_) ? "writing" : "reading",
                          format_bytes(piece.bytes), piece.offset, piece.file, std::strerror(io_error_),
                          lost ? ", twice: the device has lost them; write the tensor again" : ""),
              io_error_);
}

Result<void> Chunk::short_file() const {
  const auto piece = next_piece();
  return fail(ErrorCode::kDataLoss,
              fmt::format("the block tier's file {} ends before offset {}, where the tensor lies: it was truncated; "
                          "write the tensor again",
                          piece.file, piece.offset + piece.bytes));
}

Result<void> Chunk::mismatch() const {
  if (work_.path == Path::kProve)
    return fail(ErrorCode::kInternal,
                fmt::format("{} of {} bytes that were written to the block tier for a proof came back otherwise",
                            sum_ * sizeof sum_, work_.padded_bytes),
                EIO);
  return fail(ErrorCode::kDataLoss,
              fmt::format("chunk {} of the tensor does not match its checksum on the block tier; write the tensor "
                          "again",
                          work_.name.chunk));
}

void Chunk::end(Result<void> result) {
  step_ = Step::kIdle;
  surroundings_.owner.chunk_done(*this, std::move(result));
}

}  // namespace terrace::mover
