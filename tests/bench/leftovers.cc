// SPDX-License-Identifier: Apache-2.0
#include "bench/leftovers.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <set>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "base/fd.h"

namespace terrace::bench {
namespace {

constexpr std::string_view kPrefix = "terrace-bench-";
constexpr std::size_t kSuffixLetters = 6;  // mkdtemp's
constexpr int kTriesMax = 16;

struct Made {
  std::mutex mutex;
  std::set<pid_t> children;
  std::set<std::filesystem::path> folders;
};

Made& made() {
  static auto* const made = new Made();  // NOLINT: never destroyed, since the thread below outlives main()
  return *made;
}

sigset_t ending_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, signal);
  return set;
}

[[noreturn]] void take_everything_away(int signal, const std::function<void()>& last) {
  const std::lock_guard lock(made().mutex);  // never given back: nothing is made any more
  for (const pid_t child : made().children) ::kill(child, SIGKILL);
  for (const pid_t child : made().children) ::waitpid(child, nullptr, 0);
  std::error_code ignored;
  for (const auto& folder : made().folders) std::filesystem::remove_all(folder, ignored);
  last();
  ::_exit(128 + signal);
}

// In a fresh child: what exec() and a shell's Ctrl-C expect.
void become_child(pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  ::setpgid(0, 0);  // Ctrl-C is the parent's, which takes its children away in order
  const sigset_t set = ending_signals();
  ::sigprocmask(SIG_UNBLOCK, &set, nullptr);
  ::signal(SIGPIPE, SIG_DFL);
}

Fd open_folder(const std::filesystem::path& folder) {
  return Fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

Fd locked(const std::filesystem::path& folder) {
  Fd opened = open_folder(folder);
  if (opened && ::flock(opened.get(), LOCK_EX | LOCK_NB) != 0) opened.reset();
  return opened;
}

// Whether a file system has no such locks: then nobody's folders are taken for left over.
bool cannot_lock(const std::filesystem::path& folder) {
  const Fd opened = open_folder(folder);
  return opened && ::flock(opened.get(), LOCK_EX | LOCK_NB) != 0 && errno != EWOULDBLOCK;
}

// "terrace-bench-", a process's number, "-", and mkdtemp's letters and digits: as Folder::make() names its folders.
bool is_named_as_ours(std::string_view name) {
  if (!name.starts_with(kPrefix)) return false;
  name.remove_prefix(kPrefix.size());
  const auto is_digit = [](char letter) { return letter >= '0' && letter <= '9'; };
  const auto is_letter = [&](char letter) {
    return is_digit(letter) || (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z');
  };
  const std::size_t dash = name.find('-');
  return dash != std::string_view::npos && dash > 0 && name.size() == dash + 1 + kSuffixLetters &&
         std::ranges::all_of(name.substr(0, dash), is_digit) && std::ranges::all_of(name.substr(dash + 1), is_letter);
}

// Of this user, and nobody else's to look into: as mkdtemp makes them.
bool is_made_as_ours(const Fd& folder) {
  struct stat state{};
  return ::fstat(folder.get(), &state) == 0 && state.st_uid == ::geteuid() && (state.st_mode & 07777) == 0700;
}

bool is_there(const Fd& folder) {
  struct stat state{};
  return ::fstat(folder.get(), &state) == 0 && state.st_nlink != 0;
}

int exit_status(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

std::vector<char*> arguments_of(const std::vector<std::string>& command) {
  std::vector<char*> arguments;
  for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));  // exec's type
  arguments.push_back(nullptr);
  return arguments;
}

}  // namespace

void clean_up_at_signals(std::function<void()> last) {
  const sigset_t set = ending_signals();
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  ::signal(SIGPIPE, SIG_IGN);  // who reads the rows may be gone: what was made is to go all the same
  std::thread([set, last = std::move(last)] {
    int signal = 0;
    ::sigwait(&set, &signal);
    take_everything_away(signal, last);
  }).detach();
}

void remove_stale_folders(const std::filesystem::path& parent) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(parent, ignored)) {
    if (!is_named_as_ours(entry.path().filename().string())) continue;
    if (const Fd lock = locked(entry.path()); lock && is_made_as_ours(lock))
      std::filesystem::remove_all(entry.path(), ignored);
  }
}

std::vector<std::filesystem::path> folders_in_use(const std::filesystem::path& parent) {
  std::vector<std::filesystem::path> found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(parent, ignored)) {
    if (!is_named_as_ours(entry.path().filename().string())) continue;
    const Fd folder = open_folder(entry.path());
    if (folder && is_made_as_ours(folder) && ::flock(folder.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK)
      found.push_back(entry.path());
  }
  return found;
}

Result<std::filesystem::path> temporary_folder() {
  std::error_code error;
  auto folder = std::filesystem::temp_directory_path(error);
  if (!error) return folder;
  return fail(ErrorCode::kNotFound,
              fmt::format("there is no folder for sockets: {}; name one with TMPDIR", error.message()));
}

Result<Folder> Folder::make_temporary() {
  const auto parent = temporary_folder();
  if (!parent) return std::unexpected(parent.error());
  return make(*parent);
}

Result<Folder> Folder::make(const std::filesystem::path& parent) {
  const std::lock_guard lock(made().mutex);
  for (int tries = 0; tries < kTriesMax; ++tries) {
    std::string name = (parent / fmt::format("{}{}-XXXXXX", kPrefix, ::getpid())).string();
    if (::mkdtemp(name.data()) == nullptr) {
      const int error = errno;
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("no folder can be made in {}: {}", parent.string(), std::strerror(error)), error);
    }
    Folder folder;
    folder.lock_ = locked(name);
    // Before it was locked, a benchmark that starts just now may have taken it for left over: another one.
    if (folder.lock_ ? !is_there(folder.lock_) : !cannot_lock(name)) {
      ::rmdir(name.c_str());
      continue;
    }
    folder.path_ = name;
    made().folders.insert(folder.path_);
    return folder;
  }
  return fail(ErrorCode::kResourceExhausted,
              fmt::format("no folder in {} can be locked: is a limit on open files reached?", parent.string()));
}

Folder::Folder(Folder&& other) noexcept : path_(std::exchange(other.path_, {})), lock_(std::move(other.lock_)) {}

Folder& Folder::operator=(Folder&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(lock_, other.lock_);
  return *this;
}

Folder::~Folder() {
  if (path_.empty()) return;
  const std::lock_guard lock(made().mutex);
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
  made().folders.erase(path_);
}

Child::Child(pid_t pid) : pid_(pid) {}

Result<Child> Child::run(const std::vector<std::string>& command, const std::filesystem::path& log) {
  const std::vector<char*> arguments = arguments_of(command);
  return run([&]() -> int {
    const int out = log.empty() ? -1 : ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (out >= 0) {
      ::dup2(out, STDOUT_FILENO);
      ::dup2(out, STDERR_FILENO);
    }
    ::execvp(arguments[0], arguments.data());
    return 127;
  });
}

Result<Child> Child::run(const std::function<int()>& body) {
  const std::lock_guard lock(made().mutex);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0)
    return fail(ErrorCode::kUnavailable, fmt::format("no process could be made: {}", std::strerror(errno)), errno);
  if (pid == 0) {
    become_child(parent);
    ::_exit(body());
  }
  made().children.insert(pid);
  return Child(pid);
}

Child::Child(Child&& other) noexcept : pid_(std::exchange(other.pid_, -1)), status_(other.status_) {}

Child& Child::operator=(Child&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(status_, other.status_);
  return *this;
}

Child::~Child() {
  if (pid_ <= 0) return;
  signal(SIGKILL);
  wait();
}

void Child::signal(int number) const {
  if (pid_ > 0) ::kill(pid_, number);
}

bool Child::ended() {
  if (pid_ <= 0) return true;
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid_;
}

int Child::wait() {
  if (pid_ <= 0) return status_;
  siginfo_t info{};
  while (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
  }
  const std::lock_guard lock(made().mutex);  // reaped and forgotten at once: its number may be another's next
  int status = 0;
  ::waitpid(pid_, &status, 0);
  made().children.erase(pid_);
  pid_ = -1;
  status_ = exit_status(status);
  return status_;
}

Result<std::string> output_of(const std::vector<std::string>& command, bool quiet) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return fail(ErrorCode::kUnavailable, "no pipe", errno);
  const Fd read_end(ends[0]);
  Fd write_end(ends[1]);
  const std::vector<char*> arguments = arguments_of(command);
  auto child = Child::run([&]() -> int {
    ::dup2(write_end.get(), STDOUT_FILENO);
    if (quiet) ::dup2(::open("/dev/null", O_WRONLY | O_CLOEXEC), STDERR_FILENO);
    ::execvp(arguments[0], arguments.data());
    return 127;
  });
  if (!child) return std::unexpected(child.error());
  write_end.reset();
  std::string text;
  std::array<char, 65536> piece{};
  for (ssize_t read = 0; (read = ::read(read_end.get(), piece.data(), piece.size())) > 0;)
    text.append(piece.data(), static_cast<std::size_t>(read));
  const int status = child->wait();
  if (status == 127) return fail(ErrorCode::kUnavailable, fmt::format("{} cannot be run", command[0]));
  if (status != 0) return fail(ErrorCode::kUnavailable, fmt::format("{} ended with status {}", command[0], status));
  return text;
}

}  // namespace terrace::bench
