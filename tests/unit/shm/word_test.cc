// SPDX-License-Identifier: Apache-2.0
// Shows what each transition of the lease word does and refuses, and that packing keeps every field.
#include "shm/word.h"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <thread>
#include <vector>

namespace terrace::shm {
namespace {

constexpr std::uint32_t kLife = 7;

AtomicWord resident(Word word = {}) {
  word.state = State::kResident;
  word.incarnation = kLife;
  return AtomicWord{word.packed()};
}
Word now(const AtomicWord& word) { return Word::unpack(word.load()); }

TEST(Word, PackingKeepsEveryField) {
  const std::uint64_t seed = std::random_device{}();
  RecordProperty("seed", std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int i = 0; i < 10'000; ++i) {
    const std::uint64_t bits = random();
    const Word word{.state = static_cast<State>(bits & 3),
                    .dirty = (bits >> 2 & 1) != 0,
                    .wanted = (bits >> 3 & 1) != 0,
                    .lent = (bits >> 4 & 1) != 0,
                    .turn = (bits >> 61 & 1) != 0,
                    .torn = (bits >> 62 & 1) != 0,
                    .readers = static_cast<std::uint32_t>(bits >> 5) & kReadersMax,
                    .writers = static_cast<std::uint32_t>(bits >> 21) & kWritersMax,
                    .incarnation = static_cast<std::uint32_t>(bits >> 33) & kIncarnationMask};
    ASSERT_EQ(Word::unpack(word.packed()), word) << "seed " << seed;
  }
}

// Every state with every flag and counts at their ends, tried by the right incarnation and by another.
std::vector<Word> all_kinds() {
  std::vector<Word> words;
  for (std::uint32_t bits = 0; bits < 5u * 32 * 4 * 3 * 2; ++bits) {
    std::uint32_t rest = bits;
    const auto take = [&rest](std::uint32_t choices) {
      const std::uint32_t taken = rest % choices;
      rest /= choices;
      return taken;
    };
    words.push_back({.state = static_cast<State>(take(5)),
                     .dirty = take(2) != 0,
                     .wanted = take(2) != 0,
                     .lent = take(2) != 0,
                     .turn = take(2) != 0,
                     .torn = take(2) != 0,
                     .readers = std::array{0u, 1u, kReadersMax - 1, kReadersMax}[take(4)],
                     .writers = std::array{0u, 1u, kWritersMax}[take(3)],
                     .incarnation = kLife + take(2)});
  }
  return words;
}

// What the laws say of one more lease.
Step leased_once_more(Word w, Mode mode) {
  if (w.state == State::kFree || w.incarnation != kLife) return {Outcome::kStale, w};
  if (w.state != State::kResident && (w.state != State::kShared || mode != Mode::kRead))
    return {Outcome::kAskDaemon, w};
  if (w.wanted || w.lent || w.torn || w.readers == kReadersMax || w.writers == kWritersMax)
    return {Outcome::kAskDaemon, w};
  ++(mode == Mode::kRead ? w.readers : w.writers);
  w.dirty |= mode != Mode::kRead;
  return {Outcome::kDone, w};
}

// And of one less.
Step released_once(Word w, Mode mode) {
  if (w.state == State::kFree || w.incarnation != kLife) return {Outcome::kStale, w};
  std::uint32_t& count = mode == Mode::kRead ? w.readers : w.writers;
  if (count == 0) return {Outcome::kNotLeased, w};
  --count;
  return {Outcome::kDone, w};
}

TEST(Word, AcquireAndReleaseDoInEveryStateWhatTheLawsSay) {
  for (const Word& before : all_kinds()) {
    for (const Mode mode : {Mode::kRead, Mode::kWrite, Mode::kOverwrite}) {
      for (const bool more : {true, false}) {
        const Step right = more ? leased_once_more(before, mode) : released_once(before, mode);
        AtomicWord word{before.packed()};
        const Step step = more ? acquire(word, kLife, mode) : release(word, kLife, mode);
        ASSERT_EQ(step.outcome, right.outcome) << std::hex << before.packed();
        ASSERT_EQ(step.word, right.word) << std::hex << before.packed();
        ASSERT_EQ(now(word), right.word) << std::hex << before.packed();
      }
    }
  }
}

TEST(Word, AcquireCountsAndAWriterDirties) {
  AtomicWord word = resident();
  EXPECT_EQ(acquire(word, kLife, Mode::kRead).outcome, Outcome::kDone);
  EXPECT_EQ(acquire(word, kLife, Mode::kRead).word.readers, 2u);
  EXPECT_FALSE(now(word).dirty);
  EXPECT_EQ(acquire(word, kLife, Mode::kOverwrite).word.writers, 1u);
  EXPECT_TRUE(now(word).dirty);
}

TEST(Word, AcquireAsksTheDaemonWhereItMust) {
  for (const Word refused : {Word{.wanted = true}, Word{.lent = true}, Word{.torn = true}, Word{.readers = kReadersMax},
                             Word{.writers = kWritersMax}}) {
    AtomicWord word = resident(refused);
    const std::uint64_t before = word.load();
    EXPECT_EQ(acquire(word, kLife, Mode::kRead).outcome, Outcome::kAskDaemon);
    EXPECT_EQ(word.load(), before);
  }
  for (const State state : {State::kAbsent, State::kClaimed}) {
    AtomicWord word{Word{.state = state, .incarnation = kLife}.packed()};
    EXPECT_EQ(acquire(word, kLife, Mode::kRead).outcome, Outcome::kAskDaemon);
  }
  AtomicWord wanted = resident({.wanted = true, .lent = true});
  EXPECT_EQ(grant(wanted, kLife, Mode::kRead, true).outcome, Outcome::kDone);
}

TEST(Word, AnotherLifeOfTheSlotIsStale) {
  AtomicWord word = resident();
  EXPECT_EQ(acquire(word, kLife + 1, Mode::kRead).outcome, Outcome::kStale);
  EXPECT_EQ(release(word, kLife + 1, Mode::kRead).outcome, Outcome::kStale);
  EXPECT_EQ(claim(word, kLife + 1).outcome, Outcome::kStale);
  EXPECT_EQ(begin_clean(word, kLife + 1).outcome, Outcome::kStale);
  AtomicWord free{Word{.incarnation = kLife}.packed()};
  EXPECT_EQ(acquire(free, kLife, Mode::kRead).outcome, Outcome::kStale);
}

TEST(Word, WhatIsTornIsLeasedByTheDaemonsOverwriteAlone) {
  AtomicWord word = resident({.writers = 2});
  EXPECT_EQ(tear(word, kLife + 1).outcome, Outcome::kStale);
  EXPECT_EQ(tear(word, kLife).outcome, Outcome::kDone);
  EXPECT_EQ(tear(word, kLife).word, (Word{.state = State::kResident, .torn = true, .writers = 2, .incarnation = kLife}))
      << "twice is the same, and the leases are still to be released";
  for (const Mode mode : {Mode::kRead, Mode::kWrite, Mode::kOverwrite})
    EXPECT_EQ(acquire(word, kLife, mode).outcome, Outcome::kAskDaemon);
  EXPECT_EQ(grant(word, kLife, Mode::kRead, true).outcome, Outcome::kAskDaemon);
  EXPECT_EQ(grant(word, kLife, Mode::kWrite, true).outcome, Outcome::kAskDaemon);
  EXPECT_TRUE(release(word, kLife, Mode::kOverwrite).word.torn) << "a release mends nothing";
  EXPECT_FALSE(grant(word, kLife, Mode::kOverwrite, true).word.torn);
  EXPECT_EQ(acquire(word, kLife, Mode::kRead).outcome, Outcome::kDone);
}

TEST(Word, AReleaseWithoutALeaseChangesNothing) {
  AtomicWord word = resident({.readers = 1});
  EXPECT_EQ(release(word, kLife, Mode::kWrite).outcome, Outcome::kNotLeased);
  EXPECT_EQ(release(word, kLife, Mode::kRead).outcome, Outcome::kDone);
  EXPECT_EQ(release(word, kLife, Mode::kRead).outcome, Outcome::kNotLeased);
  EXPECT_EQ(now(word), (Word{.state = State::kResident, .incarnation = kLife}));
}

TEST(Word, ClaimTakesOnlyWhatNobodyHolds) {
  AtomicWord held = resident({.readers = 1});
  EXPECT_EQ(claim(held, kLife).outcome, Outcome::kLeased);
  AtomicWord written = resident({.dirty = true});
  const Step claimed = claim(written, kLife);
  EXPECT_EQ(claimed.outcome, Outcome::kDone);
  EXPECT_TRUE(claimed.word.dirty);
  EXPECT_EQ(claim(written, kLife).outcome, Outcome::kStale);
}

TEST(Word, CleaningCountsOnlyIfNobodyWrote) {
  AtomicWord word = resident({.dirty = true});
  EXPECT_EQ(begin_clean(word, kLife).outcome, Outcome::kDone);
  EXPECT_TRUE(finish_clean(word));
  EXPECT_EQ(begin_clean(word, kLife).outcome, Outcome::kDone);
  EXPECT_EQ(acquire(word, kLife, Mode::kWrite).outcome, Outcome::kDone);
  EXPECT_FALSE(finish_clean(word));
  EXPECT_EQ(release(word, kLife, Mode::kWrite).outcome, Outcome::kDone);
  EXPECT_FALSE(finish_clean(word));
  AtomicWord being_written = resident({.dirty = true, .writers = 1});
  EXPECT_EQ(begin_clean(being_written, kLife).outcome, Outcome::kLeased);
  EXPECT_TRUE(now(being_written).dirty);
}

TEST(Word, AFreeSlotAndAClaimedOneAreNobodysToChange) {
  AtomicWord free{Word{.incarnation = kLife}.packed()};
  EXPECT_EQ(release(free, kLife, Mode::kRead).outcome, Outcome::kStale);
  EXPECT_EQ(tear(free, kLife).outcome, Outcome::kStale);
  EXPECT_EQ(now(free), (Word{.incarnation = kLife}));
  AtomicWord claimed{Word{.state = State::kClaimed, .incarnation = kLife}.packed()};
  EXPECT_EQ(tear(claimed, kLife).outcome, Outcome::kStale);
  EXPECT_EQ(begin_clean(claimed, kLife).outcome, Outcome::kStale);
  EXPECT_EQ(now(claimed), (Word{.state = State::kClaimed, .incarnation = kLife}));
}

TEST(Word, UngrantTakesBackWhatItsTurnSays) {
  AtomicWord word = resident({.turn = true, .readers = 1});
  EXPECT_FALSE(ungrant(word, Mode::kRead, false)) << "another grant's turn";
  EXPECT_FALSE(ungrant(word, Mode::kOverwrite, true)) << "the trainer gave it back already";
  EXPECT_EQ(now(word).readers, 1u);
  EXPECT_TRUE(ungrant(word, Mode::kRead, true));
  EXPECT_EQ(now(word), (Word{.state = State::kResident, .incarnation = kLife}));
  EXPECT_FALSE(ungrant(word, Mode::kRead, true)) << "once";
}

// A step that another thread was faster than is tried again, on what that one left.
TEST(Word, NoStepOfTwoThreadsIsLost) {
  AtomicWord word = resident();
  const auto work = [&](Mode mode) {
    for (int i = 0; i < 200'000; ++i) {
      if (acquire(word, kLife, mode).outcome != Outcome::kDone) return;
      if (i % 2 == 0 && release(word, kLife, mode).outcome != Outcome::kDone) return;
      if (i % 2 != 0 && want(word, false).outcome != Outcome::kDone) return;
      if (i % 2 != 0 && release(word, kLife, mode).outcome != Outcome::kDone) return;
    }
    acquire(word, kLife, mode);
  };
  std::thread reader(work, Mode::kRead);
  std::thread writer(work, Mode::kWrite);
  reader.join();
  writer.join();
  EXPECT_EQ(now(word),
            (Word{.state = State::kResident, .dirty = true, .readers = 1, .writers = 1, .incarnation = kLife}));
}

TEST(Word, AStepIsTakenAgainOnWhatAnotherOneLeftMeanwhile) {
  AtomicWord word = resident();
  int looks = 0;
  const Step step = transition(word, [&](Word seen) -> Step {
    if (looks++ == 0) acquire(word, kLife, Mode::kRead);  // as by another thread
    seen.wanted = true;
    return {Outcome::kDone, seen};
  });
  EXPECT_GT(looks, 1);
  EXPECT_EQ(step.word, now(word));
  EXPECT_EQ(now(word), (Word{.state = State::kResident, .wanted = true, .readers = 1, .incarnation = kLife}));
}

TEST(Word, SharedIsReadAndNotWritten) {
  AtomicWord word = Word{.state = State::kShared, .incarnation = kLife}.packed();
  EXPECT_EQ(acquire(word, kLife, Mode::kWrite).outcome, Outcome::kAskDaemon);
  EXPECT_EQ(acquire(word, kLife, Mode::kOverwrite).outcome, Outcome::kAskDaemon);
  EXPECT_EQ(grant(word, kLife, Mode::kWrite, true).outcome, Outcome::kAskDaemon);
  ASSERT_EQ(acquire(word, kLife, Mode::kRead).outcome, Outcome::kDone);
  EXPECT_EQ(claim(word, kLife).outcome, Outcome::kLeased);
  want(word, true);
  EXPECT_EQ(acquire(word, kLife, Mode::kRead).outcome, Outcome::kAskDaemon);
  EXPECT_TRUE(release(word, kLife, Mode::kRead).word.wanted);
  want(word, false);
  ASSERT_EQ(claim(word, kLife).outcome, Outcome::kDone);
  EXPECT_EQ(acquire(word, kLife, Mode::kRead).outcome, Outcome::kAskDaemon);
  unclaim(word);
  EXPECT_EQ(now(word), (Word{.state = State::kShared, .incarnation = kLife}));
}

TEST(Word, ShareKeepsReadersAndTellsOfWriting) {
  AtomicWord word = Word{.state = State::kResident, .incarnation = kLife}.packed();
  ASSERT_EQ(acquire(word, kLife, Mode::kWrite).outcome, Outcome::kDone);
  ASSERT_EQ(acquire(word, kLife, Mode::kRead).outcome, Outcome::kDone);
  EXPECT_EQ(share(word, kLife).outcome, Outcome::kLeased) << "somebody writes";
  release(word, kLife, Mode::kWrite);
  EXPECT_EQ(share(word, kLife + 1).outcome, Outcome::kStale);
  const Step step = share(word, kLife);
  EXPECT_EQ(step.outcome, Outcome::kDone);
  EXPECT_TRUE(step.word.dirty);
  EXPECT_EQ(now(word), (Word{.state = State::kShared, .readers = 1, .incarnation = kLife}));
  word = Word{.state = State::kResident, .torn = true, .incarnation = kLife}.packed();
  EXPECT_EQ(share(word, kLife).outcome, Outcome::kStale) << "what is torn is looked at first";
}

}  // namespace
}  // namespace terrace::shm
