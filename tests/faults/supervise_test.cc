// SPDX-License-Identifier: Apache-2.0
// Shows that `terraced supervise` keeps a service running and what it stored, whatever the service does or suffers:
// with a small service that dies, hangs, overfills and sends garbage (store_child), and with the daemon itself.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "faults/store_control.h"
#include "service/notify_socket.h"
#include "terrace/client.h"

namespace terrace::faults {
namespace {

bool eventually(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // between two looks
  }
  return true;
}

std::string contents(const std::filesystem::path& file) {
  std::ifstream stream(file);
  return {std::istreambuf_iterator<char>(stream), {}};
}

class Supervise : public testing::Test {
 protected:
  Supervise() {
    std::string pattern = (std::filesystem::temp_directory_path() / "terrace-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  void TearDown() override {
    if (supervisor_ > 0) stop();
    std::filesystem::remove_all(folder_);
  }

  // Starts `terraced supervise` with these arguments.
  void start_supervisor(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {TERRACED, "supervise", "--restart-delay-max-ms", "20"});
    const pid_t parent = getpid();
    supervisor_ = fork();
    if (supervisor_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // a test that crashes leaves nothing
    if (getppid() != parent) _exit(1);
    const int log = open((folder_ / "log").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    setenv("TMPDIR", folder_.c_str(), 1);
    std::vector<char*> pointers;
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    execv(TERRACED, pointers.data());
    _exit(127);
  }
  // The same with store_child as the service; waits until it answers.
  void start(std::vector<std::string> options = {}, const std::string& program = STORE_CHILD) {
    options.insert(options.end(), {"--program", program, "--", "serve", folder_.string()});
    start_supervisor(std::move(options));
    EXPECT_TRUE(eventually([&] { return ask("pid").has_value(); })) << log();
  }
  // SIGTERM, or another end; the supervisor's exit status (200 and the signal if one ended it).
  int stop(int signal = SIGTERM) {
    kill(supervisor_, signal);
    int status = 0;
    const bool ended = eventually([&] { return waitpid(supervisor_, &status, WNOHANG) == supervisor_; });
    EXPECT_TRUE(ended) << log();
    if (!ended) {
      kill(supervisor_, SIGKILL);
      waitpid(supervisor_, &status, 0);
    }
    supervisor_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 200 + WTERMSIG(status);
  }

  std::optional<std::string> ask(const std::string& command) const { return faults::ask(folder_, command); }
  // The answer; waits for a service that is being started again.
  std::string answer(const std::string& command) const {
    std::optional<std::string> said;
    EXPECT_TRUE(eventually([&] { return (said = ask(command)).has_value(); })) << command << "\n" << log();
    return said.value_or("");
  }
  pid_t child() const { return std::stoi(answer("pid")); }
  // Waits until another process than `old` serves.
  bool replaced(pid_t old) const {
    return eventually([&] {
      const auto pid = ask("pid");
      return pid && std::stoi(*pid) != old;
    });
  }
  std::string log() const { return contents(folder_ / "log"); }
  bool logged(const std::string& text) const { return log().find(text) != std::string::npos; }

  std::filesystem::path folder_;
  pid_t supervisor_ = -1;
};

// What the service should hold, as its `list` prints it.
std::string listed(const std::map<std::string, std::string>& held) {
  std::string lines;
  for (const auto& [name, text] : held) lines.append(name).append("=").append(text).append("\n");
  return lines.empty() ? "nothing\n" : lines;
}

TEST_F(Supervise, GivesEverythingBackByNameOverManyDeaths) {
  const auto seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  start();
  std::map<std::string, std::string> held;
  for (int kills = 0; kills < 60; ++kills) {
    for (int i = 0; i < 4; ++i) {
      const std::string name = "name-" + std::to_string(random() % 1000);
      const std::string text = std::to_string(random());
      if (held.contains(name)) continue;
      std::string command = "store ";
      command.append(name).append(" ").append(text);
      EXPECT_EQ(answer(command), "ok");
      held[name] = text;
    }
    if (random() % 2 == 0) {
      const auto forgotten = std::next(held.begin(), static_cast<std::ptrdiff_t>(random() % held.size()));
      EXPECT_EQ(answer("forget " + forgotten->first), "ok");
      held.erase(forgotten);
    }
    const pid_t old = child();
    ASSERT_EQ(kill(old, SIGKILL), 0);
    ASSERT_TRUE(replaced(old)) << log();
    ASSERT_EQ(answer("list"), listed(held)) << "after " << kills + 1 << " kills";
  }
  EXPECT_GT(held.size(), 100u);
}

TEST_F(Supervise, KeepsWhatWasSentJustBeforeDeath) {
  start();
  std::map<std::string, std::string> held;
  for (int i = 0; i < 20; ++i) {
    const pid_t old = child();
    const std::string name = "last-" + std::to_string(10 + i);
    kill(supervisor_, SIGSTOP);  // so that it finds the message and the death at once
    EXPECT_FALSE(ask("store-and-die " + name + " words").has_value());
    kill(supervisor_, SIGCONT);
    ASSERT_TRUE(replaced(old)) << log();
    held[name] = "words";
    EXPECT_EQ(answer("list"), listed(held)) << log();
  }
}

TEST_F(Supervise, AbortsWhatHangsAndGivesItsSuccessorEverything) {
  start({"--watchdog-ms", "2000"});
  EXPECT_EQ(answer("store kept content"), "ok");
  const pid_t old = child();
  answer("hang");
  ASSERT_TRUE(replaced(old)) << log();
  EXPECT_EQ(answer("list"), "kept=content\n");
  EXPECT_TRUE(logged("process " + std::to_string(old) + " did not report in time (watchdog)")) << log();
  EXPECT_TRUE(logged("process " + std::to_string(old) + " was ended by signal 6")) << log();
}

TEST_F(Supervise, KillsWhatCannotEvenAbort) {
  start({"--watchdog-ms", "2000", "--stop-timeout-ms", "200"});
  EXPECT_EQ(answer("store kept content"), "ok");
  const pid_t old = child();
  ASSERT_EQ(kill(old, SIGSTOP), 0);
  ASSERT_TRUE(eventually([&] { return logged("process " + std::to_string(old) + " was ended by signal 9"); })) << log();
  EXPECT_EQ(answer("list"), "kept=content\n");
}

TEST_F(Supervise, HoldsAsManyAsItSaysAndDropsTheRest) {
  start({"--store-max", "8"});
  for (int i = 0; i < 8; ++i) EXPECT_EQ(answer("store name-" + std::to_string(i) + " content"), "ok");
  EXPECT_NE(answer("store ninth content").find("--store-max"), std::string::npos);
  EXPECT_EQ(answer("send 20 1"), "ok");
  const std::string before = answer("list");
  const pid_t old = child();
  kill(old, SIGKILL);
  ASSERT_TRUE(replaced(old)) << log();
  EXPECT_EQ(answer("list"), before);
  EXPECT_TRUE(logged("dropped 20 descriptors: 8 are kept, of at most 8")) << log();
  EXPECT_EQ(answer("forget name-0"), "ok");
  EXPECT_EQ(answer("store ninth content"), "ok");
}

TEST_F(Supervise, StartsAgainWithNamesAtTheirBound) {
  start({"--store-max", "4000"});
  EXPECT_EQ(answer("send 600 255"), "ok");  // more bytes of names than one start can pass
  const pid_t old = child();
  kill(old, SIGKILL);
  ASSERT_TRUE(replaced(old)) << log();
  EXPECT_EQ(answer("count"), std::to_string((32 * 4096 - 16) / 256));
}

TEST_F(Supervise, IgnoresGarbageAndStrangers) {
  start();
  EXPECT_EQ(answer("store kept content"), "ok");
  EXPECT_EQ(answer("garbage"), "ok");
  EXPECT_EQ(answer("flood 5000"), "ok");
  // Another process of this user, which knows the socket's path.
  setenv("NOTIFY_SOCKET", answer("notify").c_str(), 1);
  const auto socket = service::NotifySocket::from_environment();
  unsetenv("NOTIFY_SOCKET");
  ASSERT_TRUE(socket.has_value()) << socket.error().message;
  const Fd strange(memfd_create("strange", MFD_CLOEXEC));
  const int number = strange.get();
  ASSERT_TRUE(eventually([&] { return socket->send("FDSTORE=1\nFDNAME=strange", {&number, 1}).value_or(false); }));
  ASSERT_TRUE(eventually([&] { return socket->send("FDSTOREREMOVE=1\nFDNAME=kept").value_or(false); }));
  EXPECT_EQ(answer("store more content"), "ok");
  const pid_t old = child();
  kill(old, SIGKILL);
  ASSERT_TRUE(replaced(old)) << log();
  EXPECT_EQ(answer("list"), "kept=content\nmore=content\n");
  EXPECT_TRUE(logged("ignored 5014 messages")) << log();
}

TEST_F(Supervise, PassesSignalsOnAndExitsAsTheServiceDid) {
  for (const int signal : {SIGTERM, SIGINT}) {
    start();
    EXPECT_EQ(answer("exit-with 7"), "ok");
    const pid_t pid = child();
    EXPECT_EQ(stop(signal), 7) << log();
    EXPECT_NE(contents(folder_ / "notes").find(std::to_string(pid) + " signal " + std::to_string(signal) + "\n"),
              std::string::npos);
    EXPECT_NE(kill(pid, 0), 0) << "nothing is left running";
    for (const auto& entry : std::filesystem::directory_iterator(folder_))
      EXPECT_EQ(entry.path().filename().string().find("supervise"), std::string::npos) << entry.path();
  }
}

TEST_F(Supervise, KillsAServiceThatDoesNotEnd) {
  start({"--stop-timeout-ms", "100"});
  EXPECT_EQ(answer("deaf"), "ok");
  EXPECT_EQ(stop(), 128 + SIGKILL);
  EXPECT_TRUE(logged("did not end in time; killing it")) << log();
}

TEST_F(Supervise, StartsTheBinaryThatLiesAtThePathThen) {
  const std::filesystem::path program = folder_ / "program";
  std::filesystem::copy_file(STORE_CHILD, program);
  start({}, program);
  EXPECT_EQ(answer("store kept content"), "ok");
  const pid_t old = child();
  std::ofstream(folder_ / "new") << "#!/bin/sh\ntouch " << (folder_ / "upgraded").string() << "\nexec " << STORE_CHILD
                                 << " \"$@\"\n";
  std::filesystem::permissions(folder_ / "new", std::filesystem::perms::owner_all);
  std::filesystem::rename(folder_ / "new", program);
  ASSERT_EQ(kill(supervisor_, SIGHUP), 0);
  ASSERT_TRUE(replaced(old)) << log();
  EXPECT_TRUE(std::filesystem::exists(folder_ / "upgraded"));
  EXPECT_EQ(answer("list"), "kept=content\n");
  EXPECT_NE(contents(folder_ / "notes").find(std::to_string(old) + " signal 15"), std::string::npos);
}

TEST_F(Supervise, GoesOnTryingWithAProgramThatIsMissing) {
  const std::filesystem::path program = folder_ / "program";
  std::filesystem::copy_file(STORE_CHILD, program);
  start({}, program);
  EXPECT_EQ(answer("store kept content"), "ok");
  std::filesystem::rename(program, folder_ / "away");
  kill(child(), SIGKILL);
  // Well past the starts that follow at once.
  ASSERT_TRUE(eventually([&] {
    const std::string said = log();
    std::size_t failures = 0;
    for (std::size_t at = said.find("exited with 127"); at != std::string::npos;
         at = said.find("exited with 127", at + 1))
      ++failures;
    return failures >= 10;
  })) << log();
  std::filesystem::rename(folder_ / "away", program);
  EXPECT_EQ(answer("list"), "kept=content\n");
}

TEST_F(Supervise, LeaksNothingIntoTheService) {
  const int foreign = open("/dev/zero", O_RDONLY);  // not close-on-exec: the supervisor inherits it
  ASSERT_GE(foreign, 0);
  start();
  close(foreign);
  EXPECT_EQ(answer("store kept content"), "ok");
  const pid_t old = child();
  kill(old, SIGKILL);
  ASSERT_TRUE(replaced(old)) << log();
  std::map<int, std::string> open_ones;
  std::istringstream lines(answer("open"));
  for (std::string line; std::getline(lines, line);) open_ones[std::stoi(line)] = line.substr(line.find(' ') + 1);
  EXPECT_NE(open_ones.at(3).find("store_child"), std::string::npos) << "the memfd";
  // The rest is the service's own: sockets, its signals, the connection, and the folder that it reads.
  for (const auto& [number, target] : open_ones) {
    if (number <= 3) continue;
    EXPECT_TRUE(target.starts_with("socket:") || target == "anon_inode:[signalfd]" || target.starts_with("/proc/"))
        << number << " " << target;
  }
  EXPECT_LE(open_ones.size(), 10u);
}

TEST_F(Supervise, TakesTheServiceWithItWhenKilled) {
  start();
  const pid_t pid = child();
  EXPECT_EQ(stop(SIGKILL), 200 + SIGKILL);
  EXPECT_TRUE(eventually([&] { return kill(pid, 0) != 0; }));
}

TEST_F(Supervise, TellsItsOwnSupervisor) {
  const std::string path = folder_ / "outer";
  sockaddr_un address{};
  const socklen_t length = service::notify_address(path, address);
  const Fd outer(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  ASSERT_EQ(bind(outer.get(), reinterpret_cast<const sockaddr*>(&address), length), 0);
  setenv("NOTIFY_SOCKET", path.c_str(), 1);
  start();
  unsetenv("NOTIFY_SOCKET");
  const auto received = [&] {
    std::string text(4096, '\0');
    const ssize_t count = recv(outer.get(), text.data(), text.size(), 0);
    return count < 0 ? std::string() : text.substr(0, static_cast<std::size_t>(count));
  };
  EXPECT_TRUE(eventually([&] { return received().starts_with("READY=1\n"); })) << log();
  EXPECT_NE(answer("notify"), path) << "the service reports to the supervisor alone";
  stop();
  EXPECT_EQ(received(), "STOPPING=1");
}

TEST_F(Supervise, KeepsTheDaemonRunning) {
  std::ofstream config(folder_ / "terraced.toml");
  config << "metrics_address = \"\"\n[sockets]\n";
  for (const auto& [key, file] : {std::pair("data", "data.sock"), {"grpc", "terraced.sock"}, {"admin", "admin.sock"}})
    config << key << " = \"" << (folder_ / file).string() << "\"\n";
  config << "[[tier]]\nkind = \"memory\"\ncapacity = \"16MiB\"\n" << std::flush;
  start_supervisor({"--config", (folder_ / "terraced.toml").string()});
  const auto serves = [&] { return Client::connect({.socket = folder_ / "data.sock"}).has_value(); };
  const auto process = [&](int number) {
    const std::string started = " as process ";
    std::size_t at = std::string::npos;
    const std::string said = log();
    for (int i = 0; i < number; ++i) {
      at = said.find(started, at == std::string::npos ? 0 : at + 1);
      if (at == std::string::npos) return -1;
    }
    return std::stoi(said.substr(at + started.size()));
  };
  ASSERT_TRUE(eventually(serves)) << log();
  for (int death = 1; death <= 5; ++death) {
    ASSERT_EQ(kill(process(death), SIGKILL), 0);
    ASSERT_TRUE(eventually([&] { return process(death + 1) > 0; })) << log();
    ASSERT_TRUE(eventually(serves)) << log();
  }
  EXPECT_EQ(stop(), 0) << log();
}

}  // namespace
}  // namespace terrace::faults
