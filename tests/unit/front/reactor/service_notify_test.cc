// SPDX-License-Identifier: Apache-2.0
// Shows that a service manager is told what it asked to be told, and that its absence harms nothing.
#include "front/reactor/service_notify.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

namespace terrace::front {
namespace {

class ServiceNotifyTest : public testing::Test {
 protected:
  ServiceNotifyTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "terrace-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    manager_ = Fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, path().c_str());
    EXPECT_EQ(bind(manager_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  }
  ~ServiceNotifyTest() override {
    for (const char* name : {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}) unsetenv(name);
    std::filesystem::remove_all(folder_);
  }
  std::string path() const { return folder_ / "notify"; }
  std::string received() const {
    std::array<char, 256> bytes{};
    const ssize_t count = recv(manager_.get(), bytes.data(), bytes.size(), 0);
    return count < 0 ? "" : std::string(bytes.data(), static_cast<std::size_t>(count));
  }

  std::filesystem::path folder_;
  Fd manager_;
};

TEST_F(ServiceNotifyTest, TellsTheManager) {
  setenv("NOTIFY_SOCKET", path().c_str(), 1);
  ServiceNotify notify;
  notify.send("READY=1\nSTATUS=serving");
  EXPECT_EQ(received(), "READY=1\nSTATUS=serving");
  EXPECT_EQ(notify.watchdog_period(), Duration::zero());
}

TEST_F(ServiceNotifyTest, IsSilentWithoutAManager) {
  ServiceNotify notify;
  notify.send("READY=1");
  EXPECT_EQ(received(), "");
}

TEST_F(ServiceNotifyTest, KnowsHowOftenTheWatchdogLooks) {
  setenv("NOTIFY_SOCKET", path().c_str(), 1);
  setenv("WATCHDOG_USEC", "30000000", 1);
  EXPECT_EQ(ServiceNotify().watchdog_period(), std::chrono::seconds(15));
  setenv("WATCHDOG_PID", std::to_string(getpid()).c_str(), 1);
  EXPECT_EQ(ServiceNotify().watchdog_period(), std::chrono::seconds(15));
  setenv("WATCHDOG_PID", "1", 1);
  EXPECT_EQ(ServiceNotify().watchdog_period(), Duration::zero()) << "meant for another process";
}

}  // namespace
}  // namespace terrace::front
