// SPDX-License-Identifier: Apache-2.0
#include "unit/shm/word_model.h"

#include <deque>
#include <unordered_map>
#include <utility>

namespace terrace::shm::model {
namespace {

constexpr std::uint32_t kIncarnation = 1;

// One possible step out of a state. `broken`: the law that it breaks.
struct Successor {
  State state;
  std::string step;
  std::string broken;
};

struct Hash {
  std::size_t operator()(const State& s) const {
    std::uint64_t hash = s.word * 0x9E3779B97F4A7C15ull;
    const auto mix = [&hash](std::uint64_t value) { hash = (hash ^ value) * 0x100000001B3ull; };
    for (const Client& c : s.clients) {
      mix(static_cast<std::uint64_t>(c.pc) | std::uint64_t{c.dead} << 8 | std::uint64_t{c.leases_left} << 16 |
          std::uint64_t{c.wrote} << 24);
    }
    mix(static_cast<std::uint64_t>(s.engine) | std::uint64_t{s.engine_saw_dirty} << 8 | std::uint64_t{s.rung} << 9 |
        std::uint64_t{s.death_told} << 10 | std::uint64_t{s.upper} << 16 | std::uint64_t{s.lower} << 24 |
        std::uint64_t{s.captured} << 32 | std::uint64_t{s.versions} << 40 | std::uint64_t{s.released} << 48);
    mix(s.wants_left | std::uint64_t{s.cleans_left} << 8 | std::uint64_t{s.evictions_left} << 16);
    return hash;
  }
};

class Explorer {
 public:
  explicit Explorer(const Rules& rules) : rules_(rules) {}

  Exploration run(const State& start) {
    std::deque<State> frontier{start};
    origin_.emplace(start, Origin{start, ""});
    Exploration result;
    while (!frontier.empty()) {
      const State state = frontier.front();
      frontier.pop_front();
      next_.clear();
      expand(state);
      for (Successor& successor : next_) {
        ++result.steps;
        if (successor.broken.empty()) successor.broken = broken_law(successor.state);
        if (!successor.broken.empty()) {
          result.violation = Violation{successor.broken, trace(state)};
          result.violation->steps.push_back(successor.step);
          result.states = origin_.size();
          return result;
        }
        if (origin_.emplace(successor.state, Origin{state, successor.step}).second) frontier.push_back(successor.state);
      }
    }
    result.states = origin_.size();
    return result;
  }

 private:
  struct Origin {
    State before;
    std::string step;
  };

  void expand(const State& s) {
    for (std::size_t who = 0; who < s.clients.size(); ++who) expand_client(s, who);
    expand_engine(s);
  }

  void add(State next, std::string step, std::string broken = {}) {
    next_.push_back({next, std::move(step), std::move(broken)});
  }

  // The word as shared memory, for one call of the real thing.
  template <typename Call>
  static auto on_word(State& s, Call call) {
    AtomicWord word{s.word};
    const auto outcome = call(word);
    s.word = word.load();
    return outcome;
  }

  void expand_client(const State& s, std::size_t who) {
    const Client& c = s.clients[who];
    const std::string name = who == 0 ? "A " : "B ";
    if (c.dead) return;
    State death = s;
    death.clients[who].dead = true;
    death.death_told = false;
    add(death, name + "dies");
    switch (c.pc) {
      case Pc::kIdle:
        if (c.leases_left == 0) return;
        try_acquire(s, who, Mode::kRead, name + "acquires to read");
        try_acquire(s, who, Mode::kWrite, name + "acquires to write");
        return;
      case Pc::kReading:
        do_release(s, who, Mode::kRead, name + "releases its read");
        return;
      case Pc::kWriting: {
        State wrote = s;
        wrote.upper = wrote.clients[who].wrote = ++wrote.versions;
        wrote.clients[who].pc = Pc::kWrote;
        add(wrote, name + "writes");
        return;
      }
      case Pc::kWrote:
        do_release(s, who, Mode::kWrite, name + "releases its write");
        return;
      case Pc::kMustRing: {
        State rang = s;
        rang.clients[who].pc = Pc::kIdle;
        rang.rung = true;
        add(rang, name + "rings");
        return;
      }
    }
  }

  void try_acquire(const State& s, std::size_t who, Mode mode, std::string step) {
    State next = s;
    const bool wanted = Word::unpack(s.word).wanted;
    const bool grants = !rules_.want_refuses_new_leases;
    const Step taken = on_word(next, [&](AtomicWord& word) {
      return grants ? grant(word, kIncarnation, mode, false) : acquire(word, kIncarnation, mode);
    });
    if (taken.outcome != Outcome::kDone) return;  // asks the daemon: no step of the word
    next.clients[who].pc = mode == Mode::kRead ? Pc::kReading : Pc::kWriting;
    --next.clients[who].leases_left;
    add(next, std::move(step), wanted ? "a wanted copy takes no new leases" : "");
  }

  void do_release(const State& s, std::size_t who, Mode mode, std::string step) {
    State next = s;
    Client& c = next.clients[who];
    const Step given = on_word(next, [&](AtomicWord& word) { return release(word, kIncarnation, mode); });
    if (mode == Mode::kWrite && c.wrote > next.released) next.released = c.wrote;
    c.wrote = 0;
    const bool rings = given.word.wanted && !given.word.leased() && rules_.release_rings;
    c.pc = rings ? Pc::kMustRing : Pc::kIdle;
    add(next, std::move(step), given.outcome == Outcome::kDone ? "" : "a lease that is held can be released");
  }

  void expand_engine(const State& s) {
    switch (s.engine) {
      case EnginePc::kIdle:
        engine_begins(s);
        return;
      case EnginePc::kWaiting:
        if (s.rung || (any_dead(s) && !s.death_told)) try_claim(s, "engine is woken, claims");
        return;
      case EnginePc::kCleaning: {
        State next = s;
        next.captured = s.upper;
        next.engine = EnginePc::kCleanCopied;
        add(next, "engine copies down");
        return;
      }
      case EnginePc::kCleanCopied:
        finish(s);
        return;
      case EnginePc::kClaimed: {
        State next = s;
        next.engine = EnginePc::kClaimedCopied;
        if (s.engine_saw_dirty) next.lower = s.upper;
        add(next, s.engine_saw_dirty ? "engine writes the claimed copy back" : "engine drops the clean copy",
            leased_by_anyone(s) ? "a leased copy does not move" : "");
        return;
      }
      case EnginePc::kClaimedCopied: {
        State next = s;
        next.upper = 0;
        on_word(next, [](AtomicWord& word) {
          publish(word, {.state = shm::State::kAbsent, .incarnation = kIncarnation});
          return 0;
        });
        next.engine = EnginePc::kAbsent;
        add(next, "engine publishes it absent", s.lower < s.released ? "a released write is not lost" : "");
        return;
      }
      case EnginePc::kAbsent: {
        State next = s;
        next.upper = s.lower;
        on_word(next, [](AtomicWord& word) {
          publish(word, {.state = shm::State::kResident, .incarnation = kIncarnation});
          return 0;
        });
        next.engine = EnginePc::kIdle;
        add(next, "engine brings it back");
        return;
      }
    }
  }

  void engine_begins(const State& s) {
    if (s.cleans_left != 0) {
      State next = s;
      --next.cleans_left;
      Step begun;
      if (rules_.begin_clean_counts_writers) {
        begun = on_word(next, [](AtomicWord& word) { return begin_clean(word, kIncarnation); });
      } else {
        begun.word = Word::unpack(next.word);
        begun.word.dirty = false;
        next.word = begun.word.packed();
      }
      if (begun.outcome == Outcome::kDone) {
        next.engine = EnginePc::kCleaning;
        add(next, "engine begins to clean");
      }
    }
    if (s.evictions_left != 0) {
      State next = s;
      --next.evictions_left;
      try_claim(next, "engine claims");
    }
    if (s.wants_left != 0) {
      State next = s;
      --next.wants_left;
      const Step wanting = on_word(next, [](AtomicWord& word) { return want(word, true); });
      next.rung = false;
      if (any_dead(next)) next.death_told = true;
      if (wanting.word.leased() && !only_dead_hold(next)) {
        next.engine = EnginePc::kWaiting;
        add(next, "engine wants it, and waits");
      } else {
        try_claim(next, "engine wants it, and claims");
      }
    }
  }

  // Also what a wake-up does: look again, and wait on if somebody holds it.
  void try_claim(State next, std::string step) {
    next.rung = false;
    if (any_dead(next)) next.death_told = true;
    if (only_dead_hold(next) && Word::unpack(next.word).leased()) {
      // What dead threads held is held by nobody: the daemon resets the word. A writer's death tears the content.
      Word word = Word::unpack(next.word);
      word.readers = word.writers = 0;
      next.word = word.packed();
      for (Client& c : next.clients) c.pc = Pc::kIdle, c.wrote = 0;
    }
    Step claimed;
    if (rules_.claim_counts_leases) {
      claimed = on_word(next, [](AtomicWord& word) { return claim(word, kIncarnation); });
    } else {
      claimed.word = Word::unpack(next.word);
      claimed.word.state = shm::State::kClaimed;
      next.word = claimed.word.packed();
    }
    if (claimed.outcome != Outcome::kDone) {
      if (next.engine == EnginePc::kWaiting) add(next, "engine is woken, waits on");
      return;
    }
    next.engine = EnginePc::kClaimed;
    next.engine_saw_dirty = claimed.word.dirty;
    add(next, std::move(step));
  }

  void finish(const State& s) {
    State next = s;
    bool counts;
    if (rules_.finish_clean_counts_writers) {
      counts = on_word(next, [](AtomicWord& word) { return finish_clean(word); });
    } else {
      counts = !Word::unpack(next.word).dirty;
    }
    if (counts) next.lower = s.captured;
    next.engine = EnginePc::kIdle;
    add(next, counts ? "engine counts it as clean" : "engine finds it written to meanwhile");
  }

  static bool any_dead(const State& s) { return s.clients[0].dead || s.clients[1].dead; }
  static bool holds(const Client& c) { return c.pc == Pc::kReading || c.pc == Pc::kWriting || c.pc == Pc::kWrote; }
  static bool leased_by_anyone(const State& s) { return holds(s.clients[0]) || holds(s.clients[1]); }
  static bool only_dead_hold(const State& s) {
    for (const Client& c : s.clients) {
      if (!c.dead && holds(c)) return false;
    }
    return true;
  }

  // What holds in every state.
  std::string broken_law(const State& s) const {
    const Word word = Word::unpack(s.word);
    std::uint32_t readers = 0;
    std::uint32_t writers = 0;
    for (const Client& c : s.clients) {
      readers += c.pc == Pc::kReading ? 1 : 0;
      writers += c.pc == Pc::kWriting || c.pc == Pc::kWrote ? 1 : 0;
    }
    if (word.readers != readers || word.writers != writers) return "the word counts who holds it, dead or alive";
    if (leased_by_anyone(s) && word.state != shm::State::kResident && rules_.claim_counts_leases) {
      return "a leased copy stays published";
    }
    const bool somebody_will_wake = s.rung || s.clients[0].pc == Pc::kMustRing || s.clients[1].pc == Pc::kMustRing ||
                                    (any_dead(s) && !s.death_told);
    if (s.engine == EnginePc::kWaiting && !word.leased() && !somebody_will_wake) return "the last release rings";
    return {};
  }

  std::vector<std::string> trace(const State& end) const {
    std::vector<std::string> steps;
    for (const State* at = &end;;) {
      const Origin& origin = origin_.at(*at);
      if (origin.step.empty()) break;
      steps.insert(steps.begin(), origin.step);
      at = &origin.before;
    }
    return steps;
  }

  Rules rules_;
  std::unordered_map<State, Origin, Hash> origin_;
  std::vector<Successor> next_;
};

}  // namespace

Exploration explore(const Rules& rules, std::uint8_t leases, std::uint8_t engine_rounds) {
  State start;
  start.word = Word{.state = shm::State::kResident, .incarnation = kIncarnation}.packed();
  for (Client& c : start.clients) c.leases_left = leases;
  start.wants_left = start.cleans_left = start.evictions_left = engine_rounds;
  return Explorer(rules).run(start);
}

}  // namespace terrace::shm::model
