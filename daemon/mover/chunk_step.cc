// SPDX-License-Identifier: Apache-2.0
#include "mover/chunk_step.h"

#include "base/check.h"

namespace terrace::mover {
namespace {

constexpr Move compute(Step step) { return {step, Action::kCompute}; }
constexpr Move copy_by_gpu(Step step) { return {step, Action::kCopyByGpu}; }
constexpr Move transfer(Step step) { return {step, Action::kTransfer}; }
constexpr Move end(Action action) { return {Step::kIdle, action}; }

Move begin_copy(const Way& way) {
  if (way.from_gpu) return copy_by_gpu(way.to_gpu ? Step::kWithin : Step::kDown);
  if (!way.to_gpu) return compute(Step::kCopy);
  return way.pinned ? copy_by_gpu(Step::kUp) : compute(Step::kStage);
}

// Between a GPU and a disk, bytes go through the spare. (GPUDirect Storage would be a path of its own: see route().)
Move begin(const Way& way) {
  switch (way.path) {
    case Path::kCopy:
      return begin_copy(way);
    case Path::kZero:
      return way.to_gpu ? copy_by_gpu(Step::kUp) : compute(Step::kCopy);
    case Path::kToBlock:
      return way.from_gpu ? copy_by_gpu(Step::kDown) : compute(Step::kSum);
    case Path::kFromBlock:
      return transfer(Step::kRead);
    case Path::kProve:
      return compute(Step::kPattern);
  }
  check_failed("a path", __FILE__, __LINE__);
}

Move after_down(const Way& way) {
  if (way.path == Path::kToBlock) return compute(Step::kSum);
  return way.pinned ? end(Action::kFinish) : compute(Step::kUnstage);
}

// Where nothing is compared.
std::optional<Move> done(Step step, const Way& way) {
  switch (step) {
    case Step::kCopy:
    case Step::kUp:
    case Step::kWithin:
    case Step::kUnstage:
    case Step::kWrite:
      return end(Action::kFinish);
    case Step::kStage:
      return copy_by_gpu(Step::kUp);
    case Step::kDown:
      return after_down(way);
    case Step::kSum:
      return transfer(Step::kWrite);
    case Step::kRead:
      return compute(Step::kCheck);
    case Step::kReadAgain:
      return compute(Step::kCheckAgain);
    case Step::kPattern:
      return transfer(Step::kWritePattern);
    case Step::kWritePattern:
      return transfer(Step::kReadPattern);
    case Step::kReadPattern:
      return compute(Step::kComparePattern);
    case Step::kIdle:
    case Step::kCheck:
    case Step::kCheckAgain:
    case Step::kComparePattern:
      return std::nullopt;
  }
  return std::nullopt;
}

std::optional<Move> compared(Step step, bool matches, const Way& way) {
  switch (step) {
    case Step::kCheck:
      // The client can write where this was read to, and the way from the disk may have failed once.
      if (!matches) return transfer(Step::kReadAgain);
      return way.to_gpu ? copy_by_gpu(Step::kUp) : end(Action::kFinish);
    case Step::kCheckAgain:
      if (!matches) return end(Action::kFailChecks);
      return way.to_gpu ? copy_by_gpu(Step::kUp) : end(Action::kFinish);
    case Step::kComparePattern:
      return end(matches ? Action::kFinish : Action::kFailChecks);
    default:
      return std::nullopt;
  }
}

bool is_io(Step step) {
  return writes(step) || step == Step::kRead || step == Step::kReadAgain || step == Step::kReadPattern;
}

// Only a file that somebody else cut short ends early, or a device that takes nothing.
std::optional<Move> io_stopped(Step step, Event event) {
  if (!is_io(step)) return std::nullopt;
  if (event == Event::kPartly) return Move{step, Action::kGoOn};
  if (event == Event::kRefused && step == Step::kRead)
    return transfer(Step::kReadAgain);  // once: the disk, or the way from it, may have failed once
  const bool ends_file = event == Event::kEndedEarly && (step == Step::kRead || step == Step::kReadAgain);
  return end(ends_file ? Action::kFailShort : Action::kFailIo);
}

}  // namespace

std::optional<Move> find_move(Step step, Event event, const Way& way) {
  switch (event) {
    case Event::kStarted:
      return step == Step::kIdle ? std::optional(begin(way)) : std::nullopt;
    case Event::kDone:
      return done(step, way);
    case Event::kMatches:
    case Event::kDiffers:
      return compared(step, event == Event::kMatches, way);
    case Event::kPartly:
    case Event::kRefused:
    case Event::kGivenUp:
    case Event::kEndedEarly:
      return io_stopped(step, event);
    case Event::kGpuFailed:
      if (step == Step::kUp || step == Step::kDown || step == Step::kWithin) return end(Action::kFailGpu);
      return std::nullopt;
  }
  return std::nullopt;
}

Move next_move(Step step, Event event, const Way& way) {
  const auto move = find_move(step, event, way);
  TERRACE_CHECK(move.has_value());
  return *move;
}

}  // namespace terrace::mover
