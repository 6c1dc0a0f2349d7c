// SPDX-License-Identifier: Apache-2.0
#include "picture/picture.h"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "base/text.h"

namespace terrace::picture {
namespace {

constexpr std::size_t kSaidBytesMax = 65536;

// A nameless file: no pipe that both sides could wait on, nothing left behind.
Result<Fd> holding(std::string_view text) {
  Fd file(::memfd_create("terrace-picture", MFD_CLOEXEC));
  if (!file) return fail(ErrorCode::kUnavailable, "no memory for a picture's data", errno);
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t wrote = ::write(file.get(), text.data() + done, text.size() - done);
    if (wrote < 0) return fail(ErrorCode::kUnavailable, "no memory for a picture's data", errno);
    done += static_cast<std::size_t>(wrote);
  }
  ::lseek(file.get(), 0, SEEK_SET);
  return file;
}

std::string last_line(int file) {
  std::string text(kSaidBytesMax, '\0');
  const off_t end = ::lseek(file, 0, SEEK_END);
  const off_t from = std::max<off_t>(0, end - static_cast<off_t>(kSaidBytesMax));
  const ssize_t got = ::pread(file, text.data(), text.size(), from);
  text.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
  while (text.ends_with('\n')) text.pop_back();
  return printable(std::string_view(text).substr(text.rfind('\n') + 1));
}

// Runs it with these as its standard input, and as its output and errors. Its exit status; 127: it cannot be run.
int run(std::vector<std::string> command, int input, int output) {
  std::vector<char*> arguments;
  for (std::string& word : command) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) ::posix_spawn_file_actions_adddup2(&actions, output, stream);
  pid_t child = -1;
  const int failed = ::posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) return 127;
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

std::string default_python() {
  if (const char* const named = std::getenv("TERRACE_PYTHON"); named != nullptr && *named != '\0') return named;
  std::error_code error;
  const std::filesystem::path own = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return "python3";
  const std::filesystem::path above = own.parent_path().parent_path();
  if (std::filesystem::exists(above / "pyvenv.cfg", error)) return (own.parent_path() / "python").string();
  const std::filesystem::path built = above / "venv" / "bin" / "python";
  return std::filesystem::exists(built, error) ? built.string() : "python3";
}

std::string cannot_draw(const std::string& python) {
  if (const auto drawn = draw("import matplotlib", "", "", python)) return "";
  return fmt::format(
      "--plot needs a Python with matplotlib, and {} has none: install it (python3-matplotlib, or pip "
      "install matplotlib), or name another with --python PATH",
      python);
}

std::string cannot_write(const std::filesystem::path& file) {
  const std::filesystem::path parent = file.has_parent_path() ? file.parent_path() : ".";
  std::error_code error;
  const bool there = std::filesystem::exists(file, error);
  if (there && std::filesystem::is_directory(file, error)) return fmt::format("{} is a folder", file.string());
  if (::access(there ? file.c_str() : parent.c_str(), there ? W_OK : W_OK | X_OK) == 0) return {};
  const int failed = errno;
  return fmt::format("{} cannot be written: {}", file.string(), std::strerror(failed));
}

Result<void> draw(const std::string& script, const std::string& json, const std::filesystem::path& file,
                  const std::string& python) {
  const auto input = holding(json);
  if (!input) return std::unexpected(input.error());
  const auto said = holding("");
  if (!said) return std::unexpected(said.error());
  const int status = run({python, "-c", script, file.string()}, input->get(), said->get());
  if (status == 0) return {};
  return fail(ErrorCode::kUnavailable, status == 127
                                           ? fmt::format("no picture could be drawn: {} cannot be run", python)
                                           : fmt::format("no picture could be drawn: {}", last_line(said->get())));
}

}  // namespace terrace::picture
