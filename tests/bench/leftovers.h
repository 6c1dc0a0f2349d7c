// SPDX-License-Identifier: Apache-2.0
// What a benchmark makes and has to take away again: folders and child processes. They go with their objects, and all
// of them at SIGINT, SIGTERM and SIGHUP; the folders of a benchmark that was killed go when the next one starts. A
// folder is locked as long as its benchmark lives (flock), which is seen from other containers, too.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "terrace/error.h"

namespace terrace::bench {

// Call once in main(), before there are threads: from then on a thread waits for those signals, and at the first kills
// every child, removes every folder, calls `last`, and ends the program with 128 + the signal. SIGPIPE is ignored,
// except by children.
void clean_up_at_signals(std::function<void()> last = [] {});

// Removes folders in `parent` that benchmarks of this user left which run no more: named and made as Folder::make()
// does it, and locked by nobody.
void remove_stale_folders(const std::filesystem::path& parent);

// Folders in `parent` that a benchmark of this user has which still runs.
std::vector<std::filesystem::path> folders_in_use(const std::filesystem::path& parent);

// TMPDIR, or the system's. kNotFound where that is no folder.
Result<std::filesystem::path> temporary_folder();

// A new folder, gone with the object and all that is in it.
class Folder {
 public:
  // In `parent`, which must be there.
  static Result<Folder> make(const std::filesystem::path& parent);
  // In temporary_folder().
  static Result<Folder> make_temporary();
  Folder() = default;
  Folder(Folder&& other) noexcept;
  Folder& operator=(Folder&& other) noexcept;
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder();

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;  // empty: none
  Fd lock_;
};

// A child process, killed and waited for with the object, and by the kernel if this process is killed.
class Child {
 public:
  // Runs a program: its path and arguments. Output and errors go to `log`, or where this process's go if that is empty.
  static Result<Child> run(const std::vector<std::string>& command, const std::filesystem::path& log = {});
  // Runs a function in a forked child, which exits with what it returns.
  static Result<Child> run(const std::function<int()>& body);
  Child() = default;
  Child(Child&& other) noexcept;
  Child& operator=(Child&& other) noexcept;
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child();

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  // Whether it has ended; wait() then returns at once.
  bool ended();
  // Waits for its end: its exit status, or 128 + the signal that ended it.
  int wait();

 private:
  explicit Child(pid_t pid);
  pid_t pid_ = -1;   // of a child that runs, or has not been waited for
  int status_ = -1;  // of its exit, once waited for
};

// The output of a program that is run to its end; its errors go where this process's go, or nowhere if it is `quiet`.
// kUnavailable where it cannot be run or ends with another status than 0.
Result<std::string> output_of(const std::vector<std::string>& command, bool quiet = false);

}  // namespace terrace::bench
