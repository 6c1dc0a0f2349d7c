// SPDX-License-Identifier: Apache-2.0
// The lease word: who may touch a tensor's published copy, in one atomic 64-bit word that client and daemon share.
// Docs: docs/reference/formats.md. Every transition is one compare-and-swap here; nothing else writes a word.
#pragma once

#include <atomic>
#include <cstdint>

namespace terrace::shm {

enum class State : std::uint8_t {
  kFree = 0,      // no tensor in this slot
  kAbsent = 1,    // nothing published: ask the daemon
  kResident = 2,  // published at the slot's place and offset: leases are taken here
  kClaimed = 3,   // the engine has it for itself, at zero readers and writers: ask the daemon
  kShared = 4,    // as kResident, and other sessions read it too: read leases are taken here, others of the daemon
};

enum class Mode : std::uint8_t {
  kRead = 0,
  kWrite = 1,      // the old bytes are there (zeros if it was never written), new ones may be written
  kOverwrite = 2,  // the old bytes are not needed and not fetched
};

inline constexpr std::uint32_t kIncarnationMask = (1u << 28) - 1;
inline constexpr std::uint32_t kReadersMax = (1u << 16) - 1;
inline constexpr std::uint32_t kWritersMax = (1u << 12) - 1;

// The word taken apart. Bits: 0-2 state, 3 dirty, 4 wanted, 5 lent, 6 turn, 7 torn, 8-23 readers, 24-35 writers, 36-63
// incarnation.
struct Word {
  State state = State::kFree;
  bool dirty = false;   // written since the copy below was valid
  bool wanted = false;  // an admission waits for the leases to end: no new ones; the last release rings the doorbell
  bool lent = false;    // beyond the session's guarantee: leases only through the daemon
  bool turn = false;    // flips with each lease that the daemon grants, so that its successor can tell whether one was
  bool torn = false;    // an overwrite was given up: no content, and no leases but the daemon's, until the next one
  std::uint32_t readers = 0;
  std::uint32_t writers = 0;
  std::uint32_t incarnation = 0;
  bool operator==(const Word&) const = default;

  constexpr bool leased() const { return readers != 0 || writers != 0; }
  constexpr bool published() const { return state == State::kResident || state == State::kShared; }
  constexpr std::uint64_t packed() const {
    return static_cast<std::uint64_t>(state) | (std::uint64_t{dirty} << 3) | (std::uint64_t{wanted} << 4) |
           (std::uint64_t{lent} << 5) | (std::uint64_t{turn} << 6) | (std::uint64_t{torn} << 7) |
           (static_cast<std::uint64_t>(readers & kReadersMax) << 8) |
           (static_cast<std::uint64_t>(writers & kWritersMax) << 24) |
           (static_cast<std::uint64_t>(incarnation & kIncarnationMask) << 36);
  }
  static constexpr Word unpack(std::uint64_t bits) {
    return {.state = static_cast<State>(bits & 7),
            .dirty = (bits >> 3 & 1) != 0,
            .wanted = (bits >> 4 & 1) != 0,
            .lent = (bits >> 5 & 1) != 0,
            .turn = (bits >> 6 & 1) != 0,
            .torn = (bits >> 7 & 1) != 0,
            .readers = static_cast<std::uint32_t>(bits >> 8) & kReadersMax,
            .writers = static_cast<std::uint32_t>(bits >> 24) & kWritersMax,
            .incarnation = static_cast<std::uint32_t>(bits >> 36)};
  }
};

using AtomicWord = std::atomic<std::uint64_t>;
static_assert(sizeof(AtomicWord) == 8 && AtomicWord::is_always_lock_free);

enum class Outcome : std::uint8_t {
  kDone,
  kAskDaemon,  // not leasable here and now
  kStale,      // the slot has another incarnation: the handle is of a deleted tensor
  kNotLeased,  // a release without a lease
  kLeased,     // the engine cannot have it: somebody holds a lease
};

struct Step {
  Outcome outcome = Outcome::kDone;
  Word word;  // as it is after the step (as it was found, if nothing was done)
};

// Applies `next(word) -> Step` until the compare-and-swap holds. A step that is not kDone changes nothing.
template <typename Next>
Step transition(AtomicWord& word, Next next) {
  std::uint64_t found = word.load(std::memory_order_acquire);
  while (true) {
    const Word before = Word::unpack(found);
    const Step step = next(before);
    if (step.outcome != Outcome::kDone) return {step.outcome, before};
    if (word.compare_exchange_weak(found, step.word.packed(), std::memory_order_acq_rel, std::memory_order_acquire))
      return step;
  }
}

// The word with one more lease, if it can have one.
constexpr Step with_lease(Word w, std::uint32_t incarnation, Mode mode) {
  if (w.state == State::kFree || w.incarnation != incarnation) return {Outcome::kStale, w};
  if (!w.published() || w.readers == kReadersMax || w.writers == kWritersMax) return {Outcome::kAskDaemon, w};
  if (w.state == State::kShared && mode != Mode::kRead) return {Outcome::kAskDaemon, w};
  if (mode == Mode::kRead) {
    ++w.readers;
  } else {
    ++w.writers;
    w.dirty = true;
  }
  return {Outcome::kDone, w};
}

// The short way of a hit, without taking the word apart: one lease more or less of a resident tensor of which nothing
// else is to be said. Whatever is not plain goes the long way, by transition().
inline constexpr std::uint64_t kDirty = Word{.dirty = true}.packed();
inline constexpr std::uint64_t kPlain =
    Word{.state = State{7}, .wanted = true, .lent = true, .torn = true, .incarnation = kIncarnationMask}.packed();
inline constexpr std::uint64_t kReaders = Word{.readers = kReadersMax}.packed();
inline constexpr std::uint64_t kWriters = Word{.writers = kWritersMax}.packed();
constexpr bool is_plain(std::uint64_t bits, std::uint32_t incarnation) {
  return (bits & kPlain) == Word{.state = State::kResident, .incarnation = incarnation}.packed();
}
constexpr std::uint64_t one_lease(Mode mode) {
  return (mode == Mode::kRead ? Word{.readers = 1} : Word{.writers = 1}).packed();
}

// One more lease.
inline Step acquire(AtomicWord& word, std::uint32_t incarnation, Mode mode) {
  std::uint64_t found = word.load(std::memory_order_acquire);
  while (is_plain(found, incarnation) && (found & kReaders) != kReaders && (found & kWriters) != kWriters) {
    const std::uint64_t next = (mode == Mode::kRead ? found : found | kDirty) + one_lease(mode);
    if (word.compare_exchange_weak(found, next, std::memory_order_acq_rel, std::memory_order_acquire))
      return {Outcome::kDone, Word::unpack(next)};
  }
  return transition(word, [=](Word w) -> Step {
    if (w.published() && w.incarnation == incarnation && (w.wanted || w.lent || w.torn))
      return {Outcome::kAskDaemon, w};
    return with_lease(w, incarnation, mode);
  });
}

// Engine: one more lease, for which `wanted` and `lent` are no obstacle. An overwrite mends what is torn.
inline Step grant(AtomicWord& word, std::uint32_t incarnation, Mode mode, bool turn) {
  return transition(word, [=](Word w) -> Step {
    if (w.torn && mode != Mode::kOverwrite) return {Outcome::kAskDaemon, w};
    w.turn = turn;
    w.torn = false;
    return with_lease(w, incarnation, mode);
  });
}

// Engine: takes a granted lease back if it was granted, which is if the word's turn is `turn`. Whether it was.
inline bool ungrant(AtomicWord& word, Mode mode, bool turn) {
  const Step step = transition(word, [=](Word w) -> Step {
    std::uint32_t& count = mode == Mode::kRead ? w.readers : w.writers;
    if (!w.published() || w.turn != turn || count == 0) return {Outcome::kNotLeased, w};
    --count;
    w.turn = !turn;
    return {Outcome::kDone, w};
  });
  return step.outcome == Outcome::kDone;
}

// One lease less. If the word afterwards is `wanted` and not leased, the caller rings the daemon's doorbell.
inline Step release(AtomicWord& word, std::uint32_t incarnation, Mode mode) {
  std::uint64_t found = word.load(std::memory_order_acquire);
  while (is_plain(found, incarnation) && (found & (mode == Mode::kRead ? kReaders : kWriters)) != 0) {
    const std::uint64_t next = found - one_lease(mode);
    if (word.compare_exchange_weak(found, next, std::memory_order_acq_rel, std::memory_order_acquire))
      return {Outcome::kDone, Word::unpack(next)};
  }
  return transition(word, [=](Word w) -> Step {
    if (w.state == State::kFree || w.incarnation != incarnation) return {Outcome::kStale, w};
    std::uint32_t& count = mode == Mode::kRead ? w.readers : w.writers;
    if (count == 0) return {Outcome::kNotLeased, w};
    --count;
    return {Outcome::kDone, w};
  });
}

// An overwrite is given up, under its lease, which is still to be released: the copy is no content. Once or twice is
// the same.
inline Step tear(AtomicWord& word, std::uint32_t incarnation) {
  return transition(word, [=](Word w) -> Step {
    if (w.state != State::kResident || w.incarnation != incarnation) return {Outcome::kStale, w};
    w.torn = true;
    return {Outcome::kDone, w};
  });
}

// Engine: takes a resident copy for itself, if nobody holds a lease. `word.dirty` says whether it was written,
// `word.torn` whether what is there is content.
inline Step claim(AtomicWord& word, std::uint32_t incarnation) {
  return transition(word, [=](Word w) -> Step {
    if (w.incarnation != incarnation || !w.published()) return {Outcome::kStale, w};
    if (w.leased()) return {Outcome::kLeased, w};
    w.state = State::kClaimed;
    return {Outcome::kDone, w};
  });
}

// Engine: what one session has alone, it is to have with others; its leases for reading stand. The returned word is as
// it was before, for what it says of writing.
inline Step share(AtomicWord& word, std::uint32_t incarnation) {
  Word before;
  const Step step = transition(word, [&](Word w) -> Step {
    if (w.incarnation != incarnation || w.state != State::kResident || w.torn) return {Outcome::kStale, w};
    if (w.writers != 0) return {Outcome::kLeased, w};
    before = w;
    w.state = State::kShared;
    w.dirty = false;
    return {Outcome::kDone, w};
  });
  return step.outcome == Outcome::kDone ? Step{step.outcome, before} : step;
}

// Engine: gives a copy back that it took among those of several sessions, of which one held a lease.
inline void unclaim(AtomicWord& word) {
  static_cast<void>(transition(word, [](Word w) -> Step {
    if (w.state != State::kClaimed) return {Outcome::kStale, w};
    w.state = State::kShared;
    return {Outcome::kDone, w};
  }));
}

// Engine: the next zero count is to ring. The returned word may be at zero already.
inline Step want(AtomicWord& word, bool wanted) {
  return transition(word, [=](Word w) -> Step {
    w.wanted = wanted;
    return {Outcome::kDone, w};
  });
}

// Engine: the copy is (no longer) beyond the session's guarantee.
inline Step lend(AtomicWord& word, bool lent) {
  return transition(word, [=](Word w) -> Step {
    w.lent = lent;
    return {Outcome::kDone, w};
  });
}

// Engine: a write-back of a resident copy begins. Refused (kLeased) while somebody may be writing: without that, the
// bytes of a writer who releases during the write-back would count as written back.
inline Step begin_clean(AtomicWord& word, std::uint32_t incarnation) {
  return transition(word, [=](Word w) -> Step {
    if (w.incarnation != incarnation || w.state != State::kResident) return {Outcome::kStale, w};
    if (w.writers != 0) return {Outcome::kLeased, w};
    w.dirty = false;
    return {Outcome::kDone, w};
  });
}

// Engine: the write-back is complete; it counts if nobody wrote, or began to, since it began.
inline bool finish_clean(const AtomicWord& word) {
  const Word w = Word::unpack(word.load(std::memory_order_acquire));
  return !w.dirty && w.writers == 0;
}

// Engine: sets the whole word, in a state in which no client may change it (kFree, kAbsent, kClaimed before).
inline void publish(AtomicWord& word, Word value) { word.store(value.packed(), std::memory_order_release); }

}  // namespace terrace::shm
