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

void Chunk::start(const ChunkWork& work) {
  TERRACE_CHECK(step_ == Step::kIdle);
  TERRACE_CHECK(work.bytes > 0 && work.bytes <= work.padded_bytes);
  const bool by_cpu = work.path == Path::kCopy && work.from_gpu == nullptr && work.to_gpu == nullptr;
  TERRACE_CHECK(work.padded_bytes <= (work.pinned || by_cpu ? kCopyChunkBytes : tier::kChunkBytes));
  work_ = work;
  retries_ = 0;
  gpu_failed_ = false;
  source_ = work_.from_gpu != nullptr ? spare_ : work_.from;
  switch (work_.path) {
    case Path::kCopy:
      start_copy();
      break;
    case Path::kZero:
      if (work_.to_gpu != nullptr) {
        begin_gpu(Step::kUp);
      } else {
        compute(Step::kCopy);
      }
      break;
    // Between a GPU and a disk, bytes go through the spare. (GPUDirect Storage would be a path of its own: see
    // route().)
    case Path::kToBlock:
      if (work_.from_gpu != nullptr) {
        begin_gpu(Step::kDown);
      } else {
        compute(Step::kSum);
      }
      break;
    case Path::kFromBlock:
      begin_io(Step::kRead, work_.to_gpu != nullptr ? spare_ : work_.to);
      break;
    case Path::kProve:
      source_ = spare_;
      compute(Step::kPattern);
      break;
  }
}

void Chunk::start_copy() {
  if (work_.from_gpu != nullptr && work_.to_gpu != nullptr) {
    TERRACE_CHECK(work_.from_gpu == work_.to_gpu);
    begin_gpu(Step::kWithin);
  } else if (work_.from_gpu != nullptr) {
    begin_gpu(Step::kDown);
  } else if (work_.to_gpu == nullptr) {
    compute(Step::kCopy);
  } else if (work_.pinned) {
    begin_gpu(Step::kUp);
  } else {
    compute(Step::kStage);
  }
}

// What was begun is awaited though something after it was refused: its memory must not go before.
void Chunk::begin_gpu(Step step) {
  step_ = step;
  CudaLink& link = *(work_.to_gpu != nullptr ? work_.to_gpu : work_.from_gpu);
  const CudaLink::Way way = step == Step::kUp     ? CudaLink::Way::kUp
                            : step == Step::kDown ? CudaLink::Way::kDown
                                                  : CudaLink::Way::kWithin;
  CudaLane& lane = link.lane(way, work_.urgency);
  gpu_begun_ = begin_gpu_copies(lane);
  lane.await(*this);
}

Result<void> Chunk::begin_gpu_copies(CudaLane& lane) {
  if (work_.path == Path::kZero) return lane.zero(work_.to, work_.padded_bytes);
  if (step_ == Step::kWithin) return work_.to_gpu->move(lane, work_.to, work_.from, work_.bytes);
  if (!work_.pinned) {
    return step_ == Step::kUp ? lane.up(work_.to, spare_, work_.bytes) : lane.down(spare_, work_.from, work_.bytes);
  }
  Result<void> begun;
  for (std::uint64_t at = 0; begun && at < work_.bytes;) {
    const std::byte* host = step_ == Step::kUp ? work_.from + at : work_.to + at;
    const std::uint64_t run = surroundings_.pinned.run_bytes(host, work_.bytes - at);
    TERRACE_CHECK(run > 0);
    begun = step_ == Step::kUp ? lane.up(work_.to + at, host, run) : lane.down(work_.to + at, work_.from + at, run);
    at += run;
  }
  return begun;
}

void Chunk::copied(Result<void> result) {
  if (!gpu_begun_) result = std::move(gpu_begun_);
  gpu_begun_ = {};
  if (!result) {
    gpu_failed_ = true;
    finish(std::move(result));
    return;
  }
  if (step_ == Step::kDown) {
    down_done();
    return;
  }
  surroundings_.counts.copied_bytes += work_.path == Path::kFromBlock ? 0 : work_.bytes;
  finish({});
}

void Chunk::down_done() {
  if (work_.path == Path::kToBlock) {
    // The last one in the spare may have been somebody else's.
    std::memset(spare_ + work_.bytes, 0, work_.padded_bytes - work_.bytes);
    compute(Step::kSum);
  } else if (work_.pinned) {
    surroundings_.counts.copied_bytes += work_.bytes;
    finish({});
  } else {
    compute(Step::kUnstage);
  }
}

// What was read is what was written.
void Chunk::checked() {
  if (work_.to_gpu != nullptr) {
    begin_gpu(Step::kUp);
  } else {
    finish({});
  }
}

// Small ones are done here: a hand-over to a worker and back costs more.
void Chunk::compute(Step step) {
  step_ = step;
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

// The pattern is there, in memory or on the disk, or has come back.
void Chunk::prove_on() {
  switch (step_) {
    case Step::kPattern:
      begin_io(Step::kWritePattern, nullptr);
      return;
    case Step::kWritePattern:
      std::memset(spare_, 0, work_.padded_bytes);
      begin_io(Step::kReadPattern, spare_);
      return;
    case Step::kReadPattern:
      compute(Step::kComparePattern);
      return;
    case Step::kComparePattern:
      if (!surroundings_.spare_is_pinned) (void)madvise(spare_, tier::kChunkBytes, MADV_DONTNEED);
      if (sum_ == 0) {
        finish({});
        return;
      }
      ++surroundings_.counts.io_errors;
      finish(fail(ErrorCode::kInternal,
                  fmt::format("{} of {} bytes that were written to the block tier for a proof came back otherwise",
                              sum_ * sizeof sum_, work_.padded_bytes),
                  EIO));
      return;
    default:
      TERRACE_CHECK(false);
  }
}

void Chunk::done() {
  switch (step_) {
    case Step::kCopy:
    case Step::kUnstage:
      surroundings_.counts.copied_bytes += work_.bytes;
      finish({});
      return;
    case Step::kStage:
      begin_gpu(Step::kUp);
      return;
    case Step::kSum:
      begin_io(Step::kWrite, nullptr);
      return;
    case Step::kCheck:
      if (sum_ == surroundings_.block->checksums().get(work_.entry)) {
        checked();
        return;
      }
      // The client can write where this was read to, and the way from the disk may have failed once.
      ++surroundings_.counts.reread_chunks;
      begin_io(Step::kReadAgain, spare_);
      return;
    case Step::kCheckAgain:
      // Where the spare is pinned, the GPUs know its pages, and these must stay.
      if (!surroundings_.spare_is_pinned) (void)madvise(spare_, tier::kChunkBytes, MADV_DONTNEED);
      if (sum_ == surroundings_.block->checksums().get(work_.entry)) {
        checked();
        return;
      }
      ++surroundings_.counts.mismatched_chunks;
      finish(fail(ErrorCode::kDataLoss,
                  fmt::format("chunk {} of the tensor does not match its checksum on the block tier; write the tensor "
                              "again",
                              work_.name.chunk)));
      return;
    case Step::kPattern:
    case Step::kComparePattern:
      prove_on();
      return;
    default:
      TERRACE_CHECK(false);
  }
}

void Chunk::begin_io(Step step, std::byte* target) {
  step_ = step;
  target_ = target;
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
  if (writes()) {
    const std::span<const std::byte> bytes(source_ + io_bytes_, piece.bytes);
    ring.write(piece.file, bytes, piece.offset, *this, surroundings_.buffers.find(bytes));
  } else {
    const std::span<std::byte> bytes(target_ + io_bytes_, piece.bytes);
    ring.read(piece.file, bytes, piece.offset, *this, surroundings_.buffers.find(bytes));
  }
}

void Chunk::completed(int result, bool /*more*/) {
  if (result < 0) {
    io_refused(-result);
    return;
  }
  const auto got = static_cast<std::uint64_t>(result);
  TERRACE_CHECK(got <= asked_bytes_);
  auto& total = writes() ? surroundings_.counts.block_written_bytes : surroundings_.counts.block_read_bytes;
  total += got;
  if (got < asked_bytes_) {
    // Short: what is whole counts, and direct I/O goes on where that ends.
    const std::uint64_t whole = align_down(got, kPageBytes);
    if (whole == 0 && ++retries_ > kRetriesMax) {
      surroundings_.io.leave();
      ended_early();
      return;
    }
    ++surroundings_.counts.io_retries;
    io_bytes_ += whole;
    continue_io();
    return;
  }
  io_bytes_ += got;
  if (io_bytes_ < work_.padded_bytes) {
    continue_io();
  } else {
    surroundings_.io.leave();
    io_ended();
  }
}

// What the CPU does for small ones on this thread, to check them or to sum the next, waits until whatever follows them
// on the disk is there. Of large ones it is a worker's, who should begin.
void Chunk::io_ended() {
  if (work_.bytes <= surroundings_.inline_bytes_max) {
    surroundings_.ring.later(*this, work_.bytes);
  } else {
    io_done();
  }
}

void Chunk::io_refused(int error) {
  if (is_passing(error) && ++retries_ <= kRetriesMax) {
    ++surroundings_.counts.io_retries;
    continue_io();
    return;
  }
  surroundings_.io.leave();
  if (!is_passing(error) && step_ == Step::kRead) {
    ++surroundings_.counts.io_retries;
    begin_io(Step::kReadAgain, spare_);  // once: the disk, or the way from it, may have failed once
    return;
  }
  io_failed(error);
}

void Chunk::io_done() {
  switch (step_) {
    case Step::kWrite:
      surroundings_.block->checksums().set(work_.entry, sum_);
      finish({});
      return;
    case Step::kRead:
      compute(Step::kCheck);
      return;
    case Step::kReadAgain:
      compute(Step::kCheckAgain);
      return;
    case Step::kWritePattern:
    case Step::kReadPattern:
      prove_on();
      return;
    default:
      TERRACE_CHECK(false);
  }
}

void Chunk::io_failed(int error) {
  ++surroundings_.counts.io_errors;
  const auto piece = next_piece();
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG || error == ENOMEM;
  const bool lost = !writes() && work_.path != Path::kProve && is_of_the_medium(error);
  finish(fail(full   ? ErrorCode::kResourceExhausted
              : lost ? ErrorCode::kDataLoss
                     : ErrorCode::kInternal,
              fmt::format("{} {} at offset {} of the block tier's file {}: {}{}", writes() ? "writing" : "reading",
                          format_bytes(piece.bytes), piece.offset, piece.file, std::strerror(error),
                          lost ? ", twice: the device has lost them; write the tensor again" : ""),
              error));
}

// Only a file that somebody else cut short does this, or a device that takes nothing.
void Chunk::ended_early() {
  if (writes() || work_.path == Path::kProve) {
    io_failed(EIO);
    return;
  }
  ++surroundings_.counts.io_errors;
  const auto piece = next_piece();
  finish(fail(ErrorCode::kDataLoss,
              fmt::format("the block tier's file {} ends before offset {}, where the tensor lies: it was truncated; "
                          "write the tensor again",
                          piece.file, piece.offset + piece.bytes)));
}

void Chunk::finish(Result<void> result) {
  step_ = Step::kIdle;
  surroundings_.owner.chunk_done(*this, std::move(result));
}

}  // namespace terrace::mover
