// SPDX-License-Identifier: Apache-2.0
// Known bugs, to show that the simulator finds them. Only builds with TERRACE_PLANTS have them, and a process of those
// has one at most, which its command line names; everywhere else a plant is a constant that is false.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace terrace::engine {

enum class Plant : std::uint8_t {
  kNone,
  kNoWriterCount,          // a cleaning begins while somebody writes
  kCleanBeforeCompletion,  // a write-back counts before its bytes are there
  kFreedInFlight,          // a session's memory goes while copies are still under way in it
  kJournalSkipped,         // a record changes without its former bytes in the journal
  kNoteSkipped,            // a grant is not noted before it takes effect
  kPublishedUnrecorded,    // the word says where a copy is before the catalog does
  kReplyLost,
  kReplyTwice,
  kDeadlineForgotten,
  kLastCopyDropped,      // copies that are valid nowhere else are given up
  kMovedWhileLeased,     // the engine takes a copy that somebody leases
  kZeroFillSkipped,      // fresh memory shows what was there before
  kFloorIgnored,         // segments are given out that another session's floor needs
  kExtentLeaked,         // a copy that goes keeps its extent
  kWaiterForgotten,      // the end of a lease wakes nobody
  kDirtyCountsAsHome,    // a write under a lease does not outdate the copies below
  kRestartForgetsDirty,  // a successor takes what was written for what is in the home
  kOneWordClaimed,       // of a share's words the first alone is claimed
  kBereavedWhole,        // what a dead member of a share was writing counts as content
  kFormerTargetReused,   // what a former daemon's reads may still land in is given to others
  kOutageUnended,        // a block tier that takes no writes is not tried again
  kGivenBackUntried,     // a retired region is given back before its test has ended
  kNeverStitched,        // free room that leases have cut up is of no use, though it is guaranteed
};

inline constexpr std::array kPlantNames = std::to_array<std::string_view>({"none",
                                                                           "no-writer-count",
                                                                           "clean-before-completion",
                                                                           "freed-in-flight",
                                                                           "journal-skipped",
                                                                           "note-skipped",
                                                                           "published-unrecorded",
                                                                           "reply-lost",
                                                                           "reply-twice",
                                                                           "deadline-forgotten",
                                                                           "last-copy-dropped",
                                                                           "moved-while-leased",
                                                                           "zero-fill-skipped",
                                                                           "floor-ignored",
                                                                           "extent-leaked",
                                                                           "waiter-forgotten",
                                                                           "dirty-counts-as-home",
                                                                           "restart-forgets-dirty",
                                                                           "one-word-claimed",
                                                                           "bereaved-whole",
                                                                           "former-target-reused",
                                                                           "outage-unended",
                                                                           "given-back-untried",
                                                                           "never-stitched"});
static_assert(kPlantNames.size() == static_cast<std::size_t>(Plant::kNeverStitched) + 1);

#ifdef TERRACE_PLANTS
inline Plant planted_bug = Plant::kNone;  // set before the first engine
inline bool planted(Plant plant) { return planted_bug == plant; }
#else
constexpr bool planted(Plant) { return false; }
#endif

}  // namespace terrace::engine
