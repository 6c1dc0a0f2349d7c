// SPDX-License-Identifier: Apache-2.0
// Shows that the laws hold over random operations of several sessions that lease in their tables and through the
// engine, die, close, miss deadlines and meet failing devices: bytes read are bytes last released, every request is
// answered once and in time, nothing waits for ever once nothing is leased, and a set within its floor is always
// granted.
#include "unit/engine/random_engine.h"

namespace terrace::engine {
namespace {

class RandomOperations : public ::testing::TestWithParam<unsigned> {};

TEST_P(RandomOperations, KeepTheLaws) {
  std::cout << "seed " << GetParam() << '\n';
  RandomEngine engine(GetParam(), options_for(GetParam()));
  engine.run(20'000);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomOperations, ::testing::Range(0u, 24u));

// Law 7.
TEST(RandomOperations, SameInputsSameOutputs) {
  RandomEngine one(77, options_for(0));
  RandomEngine two(77, options_for(0));
  one.run(5'000);
  two.run(5'000);
  EXPECT_EQ(one.digest(), two.digest());
}

}  // namespace
}  // namespace terrace::engine
