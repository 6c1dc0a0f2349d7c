// SPDX-License-Identifier: Apache-2.0
// Shows that an engine is not made of options that cannot be meant, and that the refusal names the tier and the number
// that are wrong.
#include <gmock/gmock.h>

#include <limits>

#include "unit/engine/harness.h"

namespace terrace::engine {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string refusal(Options options) {
  Harness harness(three_tiers());
  options.sessions_max = Harness::shape().sessions_max;
  const auto engine = Engine::create(std::move(options), harness.catalog);
  if (engine) return "none";
  EXPECT_EQ(engine.error().code, ErrorCode::kInvalidArgument);
  return engine.error().message;
}

TierOptions device(int number) { return tier_of("device:" + std::to_string(number), tier::Kind::kDevice, 4 * kMiB); }

TEST(Options, OfATierAreNamedWithIt) {
  const auto with = [](auto change) {
    Options options = three_tiers();
    change(options.tiers[1]);
    return refusal(options);
  };
  EXPECT_THAT(with([](TierOptions& tier) { tier.capacity_bytes = 0; }), AllOf(HasSubstr("'memory'"), HasSubstr(" 0 ")));
  EXPECT_THAT(with([](TierOptions& tier) { tier.capacity_bytes += 1; }), HasSubstr("8388609 is not"));
  EXPECT_THAT(with([](TierOptions& tier) { tier.segment_bytes = 0; }), HasSubstr("segment size 0"));
  EXPECT_THAT(with([](TierOptions& tier) { tier.segment_bytes = kPageBytes; }), HasSubstr("multiple of 2 MiB"));
  EXPECT_THAT(with([](TierOptions& tier) { tier.segment_bytes = 6 * kMiB; }), HasSubstr("of the segment size 6291456"));
  for (const double mark : {0.0, -0.5, 1.5, std::numeric_limits<double>::quiet_NaN()})
    EXPECT_THAT(with([&](TierOptions& tier) { tier.high_mark = mark; }), HasSubstr("high mark"));
  EXPECT_EQ(with([](TierOptions& tier) { tier.high_mark = 1; }), "none");
  EXPECT_THAT(with([](TierOptions& tier) { tier.write_budget_bytes_per_day = 1; }), HasSubstr("only a block tier"));
}

TEST(Options, OfTiersTogetherAreNamed) {
  EXPECT_THAT(refusal({}), HasSubstr("no tiers"));
  Options options = three_tiers();
  std::swap(options.tiers[0], options.tiers[1]);
  EXPECT_THAT(refusal(options), HasSubstr("order"));
  options = three_tiers();
  options.tiers.erase(options.tiers.begin(), options.tiers.begin() + 2);
  EXPECT_THAT(refusal(options), HasSubstr("cannot be mapped"));
  for (const std::ptrdiff_t twice : {1, 2}) {
    options = three_tiers();
    options.tiers.insert(options.tiers.begin() + twice, options.tiers[static_cast<std::size_t>(twice)]);
    EXPECT_THAT(refusal(options), HasSubstr("at most one memory tier and one block tier"));
  }
  options = three_tiers();
  for (int i = 1; i < 8; ++i) options.tiers.insert(options.tiers.begin() + i, device(i));
  EXPECT_EQ(refusal(options), "none");
  options.tiers.insert(options.tiers.begin() + 8, device(8));
  EXPECT_THAT(refusal(options), HasSubstr("at most eight device tiers"));
  options.tiers = {device(0)};
  EXPECT_EQ(refusal(options), "none");
  options.tiers.push_back(device(1));
  EXPECT_THAT(refusal(options), HasSubstr("several devices need"));
}

TEST(Options, OfTheEngineAreNamed) {
  for (const double share : {-0.1, 1.0, std::numeric_limits<double>::quiet_NaN()}) {
    Options options = three_tiers();
    options.spare_share = share;
    EXPECT_THAT(refusal(options), HasSubstr("spare share"));
  }
  Options options = three_tiers();
  options.transfers_in_flight_max = 0;
  EXPECT_THAT(refusal(options), HasSubstr("transfers in flight"));
  options = three_tiers();
  options.make_policy = nullptr;
  EXPECT_THAT(refusal(options), HasSubstr("no policy"));
  for (Pauses Options::* const pauses : {&Options::outage_pauses, &Options::retired_pauses})
    for (const Pauses wrong : {Pauses{Duration(0), Duration(1)}, Pauses{Duration(2), Duration(1)}}) {
      options = three_tiers();
      options.*pauses = wrong;
      EXPECT_THAT(refusal(options), HasSubstr("pauses between tries"));
    }
}

TEST(Options, NeedACatalogWithRoomForTheirSessions) {
  Harness harness(three_tiers());
  Options options = three_tiers();
  options.sessions_max = Harness::shape().sessions_max + 1;
  const auto engine = Engine::create(options, harness.catalog);
  ASSERT_FALSE(engine.has_value());
  EXPECT_EQ(engine.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(engine.error().message, HasSubstr("17 sessions, and the catalog holds 16"));
}

}  // namespace
}  // namespace terrace::engine
