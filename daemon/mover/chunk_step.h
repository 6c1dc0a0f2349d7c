// SPDX-License-Identifier: Apache-2.0
// The steps of a chunk, and the one function that says which follows which. It knows no memory, disk or GPU: Chunk does
// what it says, and tells it what came of that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace terrace::mover {

// How bytes get from place to place.
enum class Path : std::uint8_t {
  kCopy,       // between addresses
  kZero,       // to an address, from nowhere
  kToBlock,    // checksum, then write
  kFromBlock,  // read, then check
  kProve,      // write a pattern of the daemon's own, then read it back
};

// What of a chunk decides which steps it takes.
struct Way {
  Path path{};
  bool from_gpu = false;
  bool to_gpu = false;
  bool pinned = false;  // the CPU's end is: the GPU reads and writes it itself
};

enum class Step : std::uint8_t {
  kIdle,
  kCopy,     // by the CPU, and zeroing
  kStage,    // into the spare, for a GPU to read
  kUp,       // the GPU's copies: to it,
  kDown,     // from it,
  kWithin,   // and within it
  kUnstage,  // out of the spare, where a GPU has written
  kSum,
  kWrite,
  kRead,       // to where it belongs, or into the spare for a GPU
  kCheck,      // what kRead brought
  kReadAgain,  // into the spare
  kCheckAgain,
  kPattern,  // into the spare
  kWritePattern,
  kReadPattern,
  kComparePattern
};
inline constexpr std::size_t kSteps = 17;

// What comes of a step.
enum class Event : std::uint8_t {
  kStarted,     // a chunk has new work
  kDone,        // the step did all that it was to do
  kPartly,      // an I/O was short, or put off for the moment
  kMatches,     // what was checked or compared is what was written
  kDiffers,     // it is not
  kRefused,     // an I/O ended with an error
  kGivenUp,     // an I/O was put off too often
  kEndedEarly,  // an I/O was too short too often
  kGpuFailed
};
inline constexpr std::size_t kEvents = 9;

// What is to be done with the step that follows. The last four end the chunk.
enum class Action : std::uint8_t {
  kCompute,     // the CPU has the step's work to do
  kCopyByGpu,   // a GPU has
  kTransfer,    // a disk has, from the first byte on
  kGoOn,        // the same disk has, with the bytes that are left
  kFinish,      // all is well
  kFailIo,      // with the system's error
  kFailShort,   // the file has ended
  kFailChecks,  // what was read is not what was written
  kFailGpu,     // with the driver's error
};

struct Move {
  Step step{};
  Action action{};
  bool operator==(const Move&) const = default;
};

// What follows when `event` comes of `step`; none: it cannot.
std::optional<Move> find_move(Step step, Event event, const Way& way);

// The same; a programmer's error if it cannot.
Move next_move(Step step, Event event, const Way& way);

// Of the steps that a disk does.
constexpr bool writes(Step step) { return step == Step::kWrite || step == Step::kWritePattern; }

}  // namespace terrace::mover
