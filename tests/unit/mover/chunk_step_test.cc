// SPDX-License-Identifier: Apache-2.0
// Shows which step of a chunk follows which, for every step, every event and every way: what the table does not name
// cannot happen.
#include "mover/chunk_step.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace terrace::mover {
namespace {

// Whether a row is about this way.
using Ways = bool (*)(const Way&);

struct Row {
  Step step;
  Event event;
  Ways ways;
  Move move;
};

bool any(const Way&) { return true; }
bool copies_up(const Way& way) { return way.path == Path::kCopy && !way.from_gpu && way.to_gpu; }
bool copies_up_pinned(const Way& way) { return copies_up(way) && way.pinned; }
bool copies_up_staged(const Way& way) { return copies_up(way) && !way.pinned; }
bool copies_down(const Way& way) { return way.path == Path::kCopy && way.from_gpu && !way.to_gpu; }
bool copies_within(const Way& way) { return way.path == Path::kCopy && way.from_gpu && way.to_gpu; }
bool copies_by_cpu(const Way& way) { return way.path == Path::kCopy && !way.from_gpu && !way.to_gpu; }
bool zeroes_gpu(const Way& way) { return way.path == Path::kZero && way.to_gpu; }
bool zeroes_by_cpu(const Way& way) { return way.path == Path::kZero && !way.to_gpu; }
bool writes_of_gpu(const Way& way) { return way.path == Path::kToBlock && way.from_gpu; }
bool writes_of_cpu(const Way& way) { return way.path == Path::kToBlock && !way.from_gpu; }
bool reads(const Way& way) { return way.path == Path::kFromBlock; }
bool proves(const Way& way) { return way.path == Path::kProve; }
bool to_block(const Way& way) { return way.path == Path::kToBlock; }
bool pinned_elsewhere(const Way& way) { return way.path != Path::kToBlock && way.pinned; }
bool unpinned_elsewhere(const Way& way) { return way.path != Path::kToBlock && !way.pinned; }
bool to_gpu(const Way& way) { return way.to_gpu; }
bool to_cpu(const Way& way) { return !way.to_gpu; }

constexpr Move kEnd{Step::kIdle, Action::kFinish};
constexpr Move kIoFails{Step::kIdle, Action::kFailIo};
constexpr Move kFileEnds{Step::kIdle, Action::kFailShort};
constexpr Move kChecksFail{Step::kIdle, Action::kFailChecks};
constexpr Move kGpuFails{Step::kIdle, Action::kFailGpu};

const std::vector<Row> kTable = {
    {Step::kIdle, Event::kStarted, copies_by_cpu, {Step::kCopy, Action::kCompute}},
    {Step::kIdle, Event::kStarted, copies_up_pinned, {Step::kUp, Action::kCopyByGpu}},
    {Step::kIdle, Event::kStarted, copies_up_staged, {Step::kStage, Action::kCompute}},
    {Step::kIdle, Event::kStarted, copies_down, {Step::kDown, Action::kCopyByGpu}},
    {Step::kIdle, Event::kStarted, copies_within, {Step::kWithin, Action::kCopyByGpu}},
    {Step::kIdle, Event::kStarted, zeroes_by_cpu, {Step::kCopy, Action::kCompute}},
    {Step::kIdle, Event::kStarted, zeroes_gpu, {Step::kUp, Action::kCopyByGpu}},
    {Step::kIdle, Event::kStarted, writes_of_cpu, {Step::kSum, Action::kCompute}},
    {Step::kIdle, Event::kStarted, writes_of_gpu, {Step::kDown, Action::kCopyByGpu}},
    {Step::kIdle, Event::kStarted, reads, {Step::kRead, Action::kTransfer}},
    {Step::kIdle, Event::kStarted, proves, {Step::kPattern, Action::kCompute}},

    {Step::kCopy, Event::kDone, any, kEnd},
    {Step::kStage, Event::kDone, any, {Step::kUp, Action::kCopyByGpu}},
    {Step::kUp, Event::kDone, any, kEnd},
    {Step::kUp, Event::kGpuFailed, any, kGpuFails},
    {Step::kDown, Event::kDone, to_block, {Step::kSum, Action::kCompute}},
    {Step::kDown, Event::kDone, pinned_elsewhere, kEnd},
    {Step::kDown, Event::kDone, unpinned_elsewhere, {Step::kUnstage, Action::kCompute}},
    {Step::kDown, Event::kGpuFailed, any, kGpuFails},
    {Step::kWithin, Event::kDone, any, kEnd},
    {Step::kWithin, Event::kGpuFailed, any, kGpuFails},
    {Step::kUnstage, Event::kDone, any, kEnd},

    {Step::kSum, Event::kDone, any, {Step::kWrite, Action::kTransfer}},
    {Step::kWrite, Event::kDone, any, kEnd},
    {Step::kWrite, Event::kPartly, any, {Step::kWrite, Action::kGoOn}},
    {Step::kWrite, Event::kRefused, any, kIoFails},
    {Step::kWrite, Event::kGivenUp, any, kIoFails},
    {Step::kWrite, Event::kEndedEarly, any, kIoFails},

    {Step::kRead, Event::kDone, any, {Step::kCheck, Action::kCompute}},
    {Step::kRead, Event::kPartly, any, {Step::kRead, Action::kGoOn}},
    {Step::kRead, Event::kRefused, any, {Step::kReadAgain, Action::kTransfer}},
    {Step::kRead, Event::kGivenUp, any, kIoFails},
    {Step::kRead, Event::kEndedEarly, any, kFileEnds},
    {Step::kCheck, Event::kMatches, to_cpu, kEnd},
    {Step::kCheck, Event::kMatches, to_gpu, {Step::kUp, Action::kCopyByGpu}},
    {Step::kCheck, Event::kDiffers, any, {Step::kReadAgain, Action::kTransfer}},
    {Step::kReadAgain, Event::kDone, any, {Step::kCheckAgain, Action::kCompute}},
    {Step::kReadAgain, Event::kPartly, any, {Step::kReadAgain, Action::kGoOn}},
    {Step::kReadAgain, Event::kRefused, any, kIoFails},
    {Step::kReadAgain, Event::kGivenUp, any, kIoFails},
    {Step::kReadAgain, Event::kEndedEarly, any, kFileEnds},
    {Step::kCheckAgain, Event::kMatches, to_cpu, kEnd},
    {Step::kCheckAgain, Event::kMatches, to_gpu, {Step::kUp, Action::kCopyByGpu}},
    {Step::kCheckAgain, Event::kDiffers, any, kChecksFail},

    {Step::kPattern, Event::kDone, any, {Step::kWritePattern, Action::kTransfer}},
    {Step::kWritePattern, Event::kDone, any, {Step::kReadPattern, Action::kTransfer}},
    {Step::kWritePattern, Event::kPartly, any, {Step::kWritePattern, Action::kGoOn}},
    {Step::kWritePattern, Event::kRefused, any, kIoFails},
    {Step::kWritePattern, Event::kGivenUp, any, kIoFails},
    {Step::kWritePattern, Event::kEndedEarly, any, kIoFails},
    {Step::kReadPattern, Event::kDone, any, {Step::kComparePattern, Action::kCompute}},
    {Step::kReadPattern, Event::kPartly, any, {Step::kReadPattern, Action::kGoOn}},
    {Step::kReadPattern, Event::kRefused, any, kIoFails},
    {Step::kReadPattern, Event::kGivenUp, any, kIoFails},
    {Step::kReadPattern, Event::kEndedEarly, any, kIoFails},
    {Step::kComparePattern, Event::kMatches, any, kEnd},
    {Step::kComparePattern, Event::kDiffers, any, kChecksFail},
};

std::vector<Way> all_ways() {
  std::vector<Way> ways;
  for (const Path path : {Path::kCopy, Path::kZero, Path::kToBlock, Path::kFromBlock, Path::kProve})
    for (unsigned ends = 0; ends < 8; ++ends) ways.push_back({path, (ends & 1) != 0, (ends & 2) != 0, (ends & 4) != 0});
  return ways;
}

std::vector<Step> all_steps() {
  std::vector<Step> steps;
  for (std::size_t step = 0; step < kSteps; ++step) steps.push_back(static_cast<Step>(step));
  return steps;
}

std::vector<Event> all_events() {
  std::vector<Event> events;
  for (std::size_t event = 0; event < kEvents; ++event) events.push_back(static_cast<Event>(event));
  return events;
}

std::optional<Move> in_table(Step step, Event event, const Way& way) {
  std::optional<Move> found;
  for (const Row& row : kTable) {
    if (row.step != step || row.event != event || !row.ways(way)) continue;
    EXPECT_FALSE(found.has_value()) << "two rows for step " << static_cast<int>(step);
    found = row.move;
  }
  return found;
}

std::string named(Step step, Event event, const Way& way) {
  return "step " + std::to_string(static_cast<int>(step)) + ", event " + std::to_string(static_cast<int>(event)) +
         ", path " + std::to_string(static_cast<int>(way.path)) + ", from_gpu " + std::to_string(way.from_gpu) +
         ", to_gpu " + std::to_string(way.to_gpu) + ", pinned " + std::to_string(way.pinned);
}

TEST(ChunkStepTest, EveryStepAndEventGoesWhereTheTableSays) {
  std::size_t moves = 0;
  for (const Way& way : all_ways())
    for (const Step step : all_steps())
      for (const Event event : all_events()) {
        const auto move = find_move(step, event, way);
        EXPECT_EQ(move, in_table(step, event, way)) << named(step, event, way);
        moves += move ? 1 : 0;
      }
  EXPECT_GT(moves, 0U);
}

// From idle, along every way: all steps are taken by some chunk, and each can still come to its end.
TEST(ChunkStepTest, EveryStepIsReachedAndEndsInIdle) {
  std::set<Step> reached;
  for (const Way& way : all_ways()) {
    std::set<Step> taken{Step::kIdle};
    std::vector<Step> open{Step::kIdle};
    while (!open.empty()) {
      const Step step = open.back();
      open.pop_back();
      bool goes_on = false;
      for (const Event event : all_events()) {
        const auto move = find_move(step, event, way);
        if (!move) continue;
        goes_on |= move->step != step;
        if (taken.insert(move->step).second) open.push_back(move->step);
      }
      EXPECT_TRUE(goes_on) << "step " << static_cast<int>(step);
    }
    reached.insert(taken.begin(), taken.end());
  }
  EXPECT_EQ(reached.size(), kSteps);
}

// Whatever a disk does, a chunk comes to its end: it is read at most twice.
TEST(ChunkStepTest, WhatDiffersOrIsRefusedIsReadAgainOnce) {
  const Way way{.path = Path::kFromBlock};
  EXPECT_EQ(next_move(Step::kCheck, Event::kDiffers, way).step, Step::kReadAgain);
  EXPECT_EQ(next_move(Step::kRead, Event::kRefused, way).step, Step::kReadAgain);
  EXPECT_EQ(next_move(Step::kReadAgain, Event::kRefused, way).step, Step::kIdle);
  EXPECT_EQ(next_move(Step::kCheckAgain, Event::kDiffers, way).step, Step::kIdle);
}

TEST(ChunkStepDeathTest, WhatCannotFollowAborts) {
  for (const Step step : all_steps()) {
    const Event never = step == Step::kIdle ? Event::kDone : Event::kStarted;
    EXPECT_DEATH((void)next_move(step, never, {}), "check failed") << "step " << static_cast<int>(step);
  }
}

}  // namespace
}  // namespace terrace::mover
