// SPDX-License-Identifier: Apache-2.0
// Shows what becomes of a job whose daemon has a successor that cannot go on with what it left: that one stays up, does
// not serve, and says why; everything is held, and the next daemon that can takes over without loss.
#include <gmock/gmock.h>
#include <signal.h>

#include <fstream>
#include <string>

#include "e2e/terraced.h"

namespace terrace::e2e {
namespace {

using ::testing::HasSubstr;

std::string contents(const std::string& file) {
  std::ifstream stream(file);
  return {std::istreambuf_iterator<char>(stream), {}};
}

// What is written instead of something in the configuration, and what is said of it.
struct Change {
  const char* name;
  const char* from;
  const char* to;
  const char* said;
};

class HeldOver : public ::testing::TestWithParam<Change> {};

INSTANTIATE_TEST_SUITE_P(
    Held, HeldOver,
    ::testing::Values(Change{"AnotherLimit", "[limits]\n", "[limits]\nsessions_max = 7\n", "limits.sessions_max"},
                      Change{"LessMemory", "capacity = \"16MiB\"", "capacity = \"8MiB\"", "other tiers"},
                      Change{"LessDisk", "capacity = \"64MiB\"", "capacity = \"32MiB\"", "other tiers"},
                      Change{"MoreDisk", "capacity = \"64MiB\"", "capacity = \"96MiB\"", "other tiers"},
                      Change{"AnotherFile", "/block\"]", "/other\"]", "other files"}),
    [](const auto& each) { return each.param.name; });

TEST_P(HeldOver, UntilADaemonThatCanGoOnTakesOver) {
  const Terraced terraced({.supervised = true});
  Client client = terraced.connect();
  const Result<Tensor> tensor = client.create({.name = "weights", .bytes = 3 << 20});
  ASSERT_TRUE(tensor.has_value()) << tensor.error().message;
  Result<Lease> lease = client.acquire(*tensor, {.mode = Mode::kOverwrite});
  ASSERT_TRUE(lease.has_value()) << lease.error().message;
  fill(lease->writable_bytes(), tensor->handle(), 1);

  const std::string good = contents(terraced.configuration_file());
  std::string other = good;
  const std::string from = GetParam().from;
  ASSERT_NE(other.find(from), std::string::npos) << other;
  other.replace(other.find(from), from.size(), GetParam().to);
  std::ofstream(terraced.configuration_file()) << other;
  ASSERT_TRUE(terraced.replace(SIGKILL));
  std::string said;
  ASSERT_TRUE(eventually([&] {
    said = terraced.administer("status").said;
    return said.find("does not serve") != std::string::npos;
  })) << said
      << terraced.log();
  EXPECT_THAT(said, HasSubstr(GetParam().said));
  EXPECT_THAT(said, HasSubstr("--discard"));
  const pid_t holding = terraced.daemon();
  ASSERT_TRUE(lease->release().has_value()) << "a lease ends without a daemon";
  EXPECT_EQ(terraced.daemon(), holding) << "it stays up";

  std::ofstream(terraced.configuration_file()) << good;
  ASSERT_TRUE(terraced.replace(SIGTERM));
  EXPECT_TRUE(client.create({.name = "more", .bytes = 4096}).has_value());
  const Result<Lease> again = client.acquire(*tensor);
  ASSERT_TRUE(again.has_value()) << again.error().message << terraced.log();
  EXPECT_EQ(first_difference(again->bytes(), tensor->handle(), 1), again->bytes().size());
  EXPECT_EQ(client.reconnects(), 1u);
}

TEST(Held, NotForACatalogOfNobody) {
  const Terraced terraced({.supervised = true});
  ASSERT_TRUE(terraced.serves_on());
  ASSERT_TRUE(eventually([&] { return terraced.status()["sessions"].empty(); }));  // closing waits for no answer
  std::string other = contents(terraced.configuration_file());
  const std::string capacity = "capacity = \"16MiB\"";
  ASSERT_NE(other.find(capacity), std::string::npos);
  other.replace(other.find(capacity), capacity.size(), "capacity = \"24MiB\"");
  other.insert(other.find("[limits]\n") + 9, "sessions_max = 7\n");
  std::ofstream(terraced.configuration_file()) << other;
  ASSERT_TRUE(terraced.replace(SIGKILL));
  EXPECT_TRUE(eventually([&] { return terraced.serves_on(); })) << terraced.log();
  EXPECT_EQ(terraced.log().find("does not serve"), std::string::npos);
}

TEST(Held, NothingByADaemonThatIsToldToDiscard) {
  const Terraced terraced({.supervised = true, .daemon_argument = "--discard"});
  Client client = terraced.connect();
  const Result<Tensor> tensor = client.create({.name = "weights", .bytes = 3 << 20});
  ASSERT_TRUE(tensor.has_value()) << tensor.error().message;
  ASSERT_TRUE(terraced.replace(SIGKILL));
  const auto lost = client.acquire(*tensor, {.mode = Mode::kOverwrite});
  ASSERT_FALSE(lost.has_value());
  EXPECT_EQ(lost.error().code, ErrorCode::kNotFound) << lost.error().message;
  EXPECT_THAT(lost.error().message, HasSubstr("no such session to resume"));
  EXPECT_TRUE(terraced.serves_on());
}

}  // namespace
}  // namespace terrace::e2e
