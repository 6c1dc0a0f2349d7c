// SPDX-License-Identifier: Apache-2.0
// Shows that work which ends is told from work that does not, and that a path whose drive does not answer is a failure
// that is named, and touched no more.
#include "doctor/patience.h"

#include <unistd.h>

#include "unit/doctor/made_node.h"

namespace terrace::doctor {
namespace {

using testing::ElementsAre;

TEST(Patience, WorkThatEndsAndWorkThatDoesNot) {
  EXPECT_TRUE(ends_within(std::chrono::minutes(1), [] {}));
  EXPECT_FALSE(ends_within(std::chrono::milliseconds(1), [] {
    while (true) ::pause();
  }));
}

class SilentDrive : public MadeNode {};

TEST_F(SilentDrive, IsNamedAndTouchedNoMore) {
  add_block("/no/such/folder/block");  // whoever touched it would say that it is not there
  node_.silent_paths = {"/no/such/folder/block"};
  node_.refusal = Error{ErrorCode::kUnavailable, "/no/such/folder/block: its drive does not answer", 0};
  EXPECT_THAT(check_config(node_), ElementsAre(is(kFailure, "its drive does not answer", "dmesg")));
  EXPECT_THAT(check_block_path(node_), ElementsAre(is(kFailure, "does not answer", "dmesg")));
  EXPECT_THAT(check_block_room(node_), ElementsAre(is(kNotApplicable, "does not answer")));
  EXPECT_THAT(check_pcie_link(node_), ElementsAre(is(kNotApplicable, "no GPU")));
}

}  // namespace
}  // namespace terrace::doctor
