// SPDX-License-Identifier: Apache-2.0
// Shows that whoever draws gets script, data and file, and that why nothing was drawn is said. A shell stands in for
// Python: it takes a script in the same way.
#include "picture/picture.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <fstream>
#include <iterator>

namespace terrace::picture {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(Picture, IsMadeOfTheDataByTheScript) {
  const std::string file = testing::TempDir() + "picture_test." + std::to_string(getpid()) + ".png";
  const std::string json(1 << 20, 'x');  // more than a pipe holds
  ASSERT_TRUE(draw("cat > \"$0\"", json, file, "/bin/sh"));
  std::ifstream drawn(file);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(drawn), {}), json);
  std::filesystem::remove(file);
}

TEST(Picture, ThatIsNotDrawnSaysWhy) {
  const auto failed = draw("echo first >&2; echo out of ink >&2; exit 3", "", "", "/bin/sh");
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(failed.error().message, AllOf(HasSubstr("out of ink"), Not(HasSubstr("first"))));
  EXPECT_THAT(draw("", "", "", "/no/such/python").error().message, HasSubstr("/no/such/python cannot be run"));
}

TEST(Picture, NeedsAPythonThatCan) {
  EXPECT_THAT(cannot_draw("/no/such/python"), AllOf(HasSubstr("matplotlib"), HasSubstr("--python")));
  EXPECT_EQ(cannot_draw("/bin/true"), "");
}

TEST(Picture, HasAPlaceBeforeAnythingIsComputedForIt) {
  const std::filesystem::path folder = testing::TempDir() + "picture_test." + std::to_string(getpid());
  std::filesystem::create_directory(folder);
  EXPECT_EQ(cannot_write(folder / "rows.png"), "");
  EXPECT_FALSE(std::filesystem::exists(folder / "rows.png")) << "nothing is left behind";
  std::ofstream(folder / "rows.png") << "an earlier picture";
  EXPECT_EQ(cannot_write(folder / "rows.png"), "");
  EXPECT_THAT(cannot_write(folder), HasSubstr("is a folder"));
  EXPECT_THAT(cannot_write(folder / "missing" / "rows.png"), HasSubstr("cannot be written: No such file or directory"));
  EXPECT_EQ(cannot_write("rows.png"), "");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace terrace::picture
