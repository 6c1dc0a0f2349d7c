// SPDX-License-Identifier: Apache-2.0
// Shows what is said of a configuration, good, doubtful or refused, and of where the sockets are to lie; what a whole
// examination says; and that this machine can be looked at.
#include <fmt/format.h>

#include <cerrno>
#include <fstream>
#include <set>

#include "unit/doctor/made_node.h"

namespace terrace::doctor {
namespace {

using testing::ElementsAre;

class Files : public MadeNode {
 protected:
  // As the daemon would read it on this machine.
  Node look(const std::string& text) {
    const std::string file = root_.path() + "/terraced.toml";
    std::ofstream(file)
        << fmt::format("metrics_address = \"\"\n[sockets]\ndata = \"{0}/d\"\ngrpc = \"{0}/g\"\nadmin = \"{0}/a\"\n",
                       root_.path())
        << text;
    topology::raise_limits();
    Result<Node> node = look_at_node(file);
    EXPECT_TRUE(node) << node.error().message;
    return node.value_or(Node());
  }
};

constexpr const char* kMemory = "[[tier]]\nkind = \"memory\"\ncapacity = \"32MiB\"\n";

TEST_F(Files, AConfigurationThatIsGood) {
  const Node node = look(kMemory);
  EXPECT_THAT(check_config(node), ElementsAre(is(kOk, "would start with")));
  EXPECT_THAT(check_sockets(node), ElementsAre(is(kOk, "can be made")));
}

TEST_F(Files, AConfigurationWithAWarning) {
  EXPECT_THAT(check_config(look("[[tier]]\nkind = \"memory\"\ncapacity = \"100MiB\"\n")),
              ElementsAre(is(kWarning, "whole segments", "terraced --check-config")));
}

TEST_F(Files, AConfigurationThatIsRefused) {
  const Node node = look("[[tier]]\nkind = \"memory\"\ncapacity = \"900TiB\"\n");
  EXPECT_THAT(check_config(node), ElementsAre(is(kFailure, "tier[0].capacity", "terraced --check-config")));
  EXPECT_THAT(check_sockets(node), ElementsAre(is(kOk, "can be made")));
}

TEST_F(Files, AConfigurationThatIsNone) {
  EXPECT_THAT(check_config(look("[[tier")), ElementsAre(is(kFailure, "would not start")));
  const auto missing = look_at_node(root_.path() + "/no.toml");
  ASSERT_TRUE(missing);
  EXPECT_THAT(check_config(*missing), ElementsAre(is(kFailure, "no.toml")));
}

TEST_F(Files, WithoutAConfigurationTheDefaultsAreLookedAt) {
  node_.config_file.clear();
  EXPECT_THAT(check_config(node_), ElementsAre(is(kNotApplicable, "a quarter of the memory")));
}

TEST_F(Files, SocketsThatCannotBe) {
  node_.config.sockets.admin = root_.path() + "/admin.sock";
  std::ofstream(node_.config.sockets.admin) << "a file";
  EXPECT_THAT(check_sockets(node_), ElementsAre(is(kFailure, "is there and is no socket", "name another path")));
}

TEST_F(Files, SocketsWithoutAPath) {
  node_.config.sockets.admin.clear();
  EXPECT_THAT(check_sockets(node_), ElementsAre(is(kNotApplicable, "since the configuration is refused")));
  node_.config.source = "terraced.toml";  // which was read
  EXPECT_THAT(check_sockets(node_), ElementsAre(is(kFailure, "no socket has a path", "XDG_RUNTIME_DIR")));
}

TEST_F(Files, AConfigurationThatThisUserMayNotRead) {
  node_.refusal = Error{ErrorCode::kPermissionDenied, "terraced.toml: Permission denied", EACCES};
  EXPECT_THAT(check_config(node_), ElementsAre(is(kFailure, "would not start")));
  node_.is_root = false;
  EXPECT_THAT(check_config(node_), ElementsAre(is(kWarning, "this user may not do all", "sudo terracectl doctor")));
}

TEST_F(Files, EachCheckHasANameOfItsOwnAndSaysSomething) {
  const Node node = look(kMemory);
  const auto examined = examine(node);
  std::set<std::string_view> names;
  for (const Examined& each : examined) {
    names.insert(each.check);
    EXPECT_FALSE(each.finding.reason.empty()) << each.check;
    const bool is_bad = each.finding.verdict >= Verdict::kWarning;
    EXPECT_EQ(each.finding.mend.empty(), !is_bad) << each.check;
  }
  EXPECT_EQ(names.size(), checks().size());
}

TEST_F(Files, TheWorstFindingIsTheVerdict) {
  EXPECT_EQ(verdict_on({}), kNotApplicable);
  EXPECT_EQ(verdict_on(std::vector<Examined>{{"a", ok("")}, {"b", not_applicable("")}}), kOk);
  EXPECT_EQ(verdict_on(std::vector<Examined>{{"a", failure("", "")}, {"b", warning("", "")}}), kFailure);
}

}  // namespace
}  // namespace terrace::doctor
