// SPDX-License-Identifier: Apache-2.0
// What the suites block and pipeline measure with: a daemon with a block tier, a session, and fio on the same disk.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "bench/fio.h"
#include "bench/tensor_set.h"
#include "bench/through_memory.h"

namespace terrace::bench {

// What moving some bytes took. Of the daemon: CPU, times that its threads waited, bytes that it had from the disk.
struct Moved {
  double gib_per_second = 0;
  double cpu_seconds_per_gib = 0;
  double waits_per_gib = 0;
  double disk_reads_per_byte = 0;
  QueueSeen queue;  // the device's, meanwhile
};

// How well the device's queue was kept, with the bar's limit.
Count count_of(const QueueKept& queue);

class BlockRig {
 public:
  // The daemon, and a file for fio of `file_bytes`. Both lie on the disk at once: kInvalidArgument where that passes
  // the settings' bound.
  static Result<BlockRig> make(const Bench& bench, const DaemonOptions& options, std::uint64_t file_bytes);

  PrivateDaemon& daemon() { return daemon_; }
  Client& client() { return client_; }
  const Fio& fio() const { return fio_; }

  // fio's job at its best, see Fio::at_its_best.
  Result<FioJob> best(const Bench& bench, const FioJob& job) const;

  // Runs `work`, which moves `bytes`.
  Result<Moved> moving(std::uint64_t bytes, const std::function<Result<void>()>& work) const;

 private:
  BlockRig(PrivateDaemon daemon, Client client, Fio fio, std::filesystem::path disk)
      : daemon_(std::move(daemon)), client_(std::move(client)), fio_(std::move(fio)), disk_(std::move(disk)) {}

  PrivateDaemon daemon_;
  Client client_;  // before its daemon goes
  Fio fio_;
  std::filesystem::path disk_;
};

// Brings the tensors to a place by requests of `together` each, of which `outstanding` are under way at a time.
Result<void> bring(Client& client, std::span<const Tensor> tensors, std::size_t together, std::size_t outstanding,
                   Place place = Place::host());

// What a row's speed is of the reference's job in memory that no cache holds, as what is measured has.
class BesideMoreMemory {
 public:
  // `best`: what the row's reference is.
  BesideMoreMemory(const Fio& fio, const FioJob& best);

  // Call before each measurement of the reference, of which a round has two: before the first it is measured.
  void measure();
  // Without a limit, since a clock took it. None where it could not be run so in each of `rounds`.
  std::optional<Count> count(double gib_per_second, std::size_t rounds) const;

 private:
  FioJob best_;
  std::optional<ThroughMemory> more_;  // none where it cannot be had, or is no more than the reference has
  std::size_t calls_ = 0;
  std::vector<double> gib_per_second_;
};

// One row's rounds: what is measured and its reference in turns, with what both took besides time.
class BlockRounds {
 public:
  // `prepare` runs before each measurement and is not timed; `verify` after it.
  struct Measured {
    std::uint64_t bytes = 0;
    std::function<Result<void>()> prepare;
    std::function<Result<void>()> move;
    std::function<Result<void>()> verify;
  };
  static Result<BlockRounds> run(const Bench& bench, const std::string& what, const BlockRig& rig,
                                 const Measured& measured, const FioJob& job);

  // Value, reference and interval from the rounds, and the counts: how well the device's queue was kept as full as
  // the reference's, CPU and waits a GiB, its speed against fio in more memory, and, where the disk is read, that it
  // was read in full: `reads` of what is moved comes from it, none where that is 0.
  Row row(Row row, double reads) const;
  // The device's queue beside fio's.
  QueueKept queue() const;

  const std::vector<Round>& rounds() const { return rounds_; }
  const std::vector<Moved>& moved() const { return moved_; }
  const std::vector<FioFigures>& reference() const { return reference_; }

 private:
  std::vector<Round> rounds_;
  std::vector<Moved> moved_;
  std::vector<FioFigures> reference_;  // two a round
  std::optional<Count> beside_more_memory_;
};

}  // namespace terrace::bench
