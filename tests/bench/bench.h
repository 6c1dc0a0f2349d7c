// SPDX-License-Identifier: Apache-2.0
// What a suite is given: how to measure, where to put its rows, and who hears how far it is.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

#include "bench/private_daemon.h"
#include "bench/rounds.h"
#include "bench/row.h"

namespace terrace::bench {

struct Settings {
  bool quick = false;                // every row, in less time and with less data: its figures say little
  std::filesystem::path disk{};      // folder for block files, on the disk to be measured
  std::uint64_t disk_bytes_max{};    // what all files of a suite may take there at a time
  std::string terraced{};            // the daemon's binary
  std::string python{};              // a Python with the packages that a suite needs
  std::filesystem::path examples{};  // the Python examples' folder
  std::string fio{};                 // fio's binary
};

// A line on standard error, or nothing where nobody reads it.
void tell(const std::string& line);

// Lines on standard error about how far it is; the rows, in the order in which they came.
class Bench {
 public:
  explicit Bench(Settings settings);
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;
  ~Bench() = default;

  const Settings& settings() const { return settings_; }
  // One of two, by --quick.
  template <typename T>
  T either(T full, T quick) const {
    return settings_.quick ? quick : full;
  }
  // Rounds of a row's measurement.
  int rounds() const { return either(7, 2); }

  // From now on another suite measures, whose files may take so much of the disk at a time.
  void limit_disk(std::uint64_t bytes_max) { settings_.disk_bytes_max = bytes_max; }

  // A line of progress.
  void say(const std::string& what) const;
  // The row is measured; its bytes were right. One without a ratio is said, counted, and left out.
  void add(Row row);
  // So far; for any thread.
  std::vector<Row> rows() const;
  // How many had a reference of 0, so that there is no ratio; those are no rows.
  int unmeasured() const { return unmeasured_; }

  // A daemon for the suite. kInvalidArgument for a block tier of more bytes than the suite's files may take.
  Result<PrivateDaemon> start_daemon(const DaemonOptions& options) const;
  // take_turns() with as many rounds as rounds() says, and a line of progress for each.
  Result<std::vector<Round>> take_turns(const std::string& what, const Measure& value, const Measure& reference) const;

 private:
  Settings settings_;
  mutable std::mutex mutex_;  // of the rows
  std::vector<Row> rows_;
  int unmeasured_ = 0;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

// For rows with both a value and a reference: what was compared, put into the row.
Row with(Row row, const std::vector<Round>& rounds);

inline double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace terrace::bench
