// SPDX-License-Identifier: Apache-2.0
// Shows by what a bar holds, what the interval is made of, and how a row is printed.
#include "bench/row.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/bench.h"
#include "bench/contents.h"
#include "bench/rounds.h"
#include "bench/table.h"

namespace terrace::bench {
namespace {

Row row_of(double value, Interval interval, std::vector<Count> counts) {
  return {.bench = "suite.row",
          .path = "a path",
          .value = value,
          .unit = "GB/s",
          .reference = "fio",
          .reference_value = 10,
          .bar = 0.97,
          .better = Better::kHigher,
          .interval = interval,
          .counts = std::move(counts)};
}

TEST(Bar, HoldsByTheRatioWhereItReachesIt) {
  EXPECT_EQ(held_by(row_of(9.7, {1, 1}, {})), "ratio");
  EXPECT_EQ(held_by(row_of(12, {0.9, 1.1}, {{.name = "too many", .value = 3, .limit = 2}})), "ratio");
  EXPECT_EQ(held_by(row_of(9.69, {1, 1}, {})), std::nullopt);
}

TEST(Bar, HoldsByTheIntervalWhereEveryCountIsWithinItsLimit) {
  const Count good{.name = "calls", .value = 2, .limit = 2};
  const Count bad{.name = "calls", .value = 2.01, .limit = 2};
  const Count shown{.name = "calls", .value = 1e9};
  EXPECT_EQ(held_by(row_of(9, {0.9, 1.1}, {good})), "interval");
  EXPECT_EQ(held_by(row_of(9, {0.9, 1.1}, {good, shown})), "interval");
  EXPECT_EQ(held_by(row_of(9, {0.9, 1.1}, {good, bad})), std::nullopt);
  EXPECT_EQ(held_by(row_of(8.99, {0.9, 1.1}, {good})), std::nullopt) << "worse than the reference ever was";
}

TEST(Bar, DoesNotHoldByAnIntervalWithoutAnyLimit) {
  EXPECT_EQ(held_by(row_of(9, {0.9, 1.1}, {})), std::nullopt);
  EXPECT_EQ(held_by(row_of(9, {0.9, 1.1}, {{.name = "shown", .value = 1}})), std::nullopt);
  Row row = row_of(9, {}, {{.name = "calls", .value = 2, .limit = 2}});
  row.interval.reset();
  EXPECT_EQ(held_by(row), std::nullopt);
}

TEST(Bar, LimitsBothWays) {
  Row row = row_of(14, {0.5, 1.6}, {{.name = "share", .value = 0.98, .limit = 0.97, .better = Better::kHigher}});
  row.better = Better::kLower;
  row.bar = 1.5;
  EXPECT_EQ(held_by(row), "ratio");
  row.value = 15.5;
  EXPECT_EQ(held_by(row), "interval");
  row.counts[0].value = 0.96;
  EXPECT_EQ(held_by(row), std::nullopt);
  row.value = 15;
  EXPECT_EQ(held_by(row), "ratio") << "on the bar";
}

TEST(Bar, BoundsTheRatioInTheRowsOwnWords) {
  Row row = row_of(0.02, {1, 1}, {});
  row.ratio_of = RatioOf::kReferenceOverValue;
  EXPECT_DOUBLE_EQ(ratio(row), 500);
  row.ratio_of = RatioOf::kValue;
  EXPECT_DOUBLE_EQ(ratio(row), 0.02);
  row.ratio_of = RatioOf::kValueOverReference;
  EXPECT_DOUBLE_EQ(ratio(row), 0.002);
}

TEST(Rounds, TakeTheMiddleAndTheReferenceAgainstItself) {
  EXPECT_DOUBLE_EQ(median({3, 1, 2}), 2);
  EXPECT_DOUBLE_EQ(median({4, 1, 2, 3}), 2.5);
  const Compared steady = compared({{10, 9, 10}, {10, 9, 10}, {10, 50, 10}});
  EXPECT_DOUBLE_EQ(steady.value, 9);
  EXPECT_DOUBLE_EQ(steady.reference, 10);
  EXPECT_DOUBLE_EQ(steady.interval.low, 1);
  EXPECT_DOUBLE_EQ(steady.interval.high, 1);
  const Compared restless = compared({{10, 9, 12}, {11, 9, 10}, {10, 9, 9}, {12, 9, 10}, {10, 9, 11}});
  EXPECT_LT(restless.interval.low, 1);
  EXPECT_GT(restless.interval.high, 1);
  EXPECT_GE(restless.interval.low, 9.0 / 12) << "no wider than what was seen";
  EXPECT_LE(restless.interval.high, 12.0 / 9);
}

TEST(Rounds, AreTheSameForTheSameFigures) {
  const std::vector<Round> rounds{{10, 9, 12}, {11, 9, 10}, {10, 9, 9}};
  EXPECT_EQ(compared(rounds).interval.low, compared(rounds).interval.low);
  EXPECT_DOUBLE_EQ(compared(rounds, RatioOf::kReferenceOverValue).interval.low, 1 / compared(rounds).interval.high);
}

TEST(Rounds, MeasureTheReferenceBeforeAndAfterEachValueAndEndWithTheFirstError) {
  std::string order;
  const auto good = [&](char what) { return [&order, what]() -> Result<double> { return order += what, 1.0; }; };
  const auto rounds = take_turns(2, good('v'), good('r'));
  ASSERT_TRUE(rounds.has_value());
  EXPECT_EQ(rounds->size(), 2U);
  EXPECT_EQ(order, "rvrrvr");
  const auto failed =
      take_turns(2, []() -> Result<double> { return fail(ErrorCode::kDataLoss, "wrong byte"); }, good('r'));
  ASSERT_FALSE(failed.has_value());
  EXPECT_EQ(failed.error().code, ErrorCode::kDataLoss);
  EXPECT_EQ(order, "rvrrvrr");
}

TEST(Json, HasEveryFieldAndNullForWhatARowDoesNotHave) {
  const auto json = to_json(row_of(9, {0.9, 1.1}, {{.name = "calls", .value = 2, .limit = 2}, {.name = "shown"}}));
  EXPECT_EQ(json.dump(),
            R"({"bench":"suite.row","value":9.0,"unit":"GB/s","reference":"fio","reference_value":10.0,"ratio":0.9,)"
            R"("bar":0.97,"better":"higher","interval":[0.9,1.1],"counts":[)"
            R"({"name":"calls","value":2.0,"limit":2.0,"better":"lower"},)"
            R"({"name":"shown","value":0.0,"limit":null,"better":"lower"}],"by":"interval"})");
  const auto alone = to_json({.bench = "a.b",
                              .path = "p",
                              .value = 300,
                              .unit = "bytes",
                              .ratio_of = RatioOf::kValue,
                              .bar = 256,
                              .better = Better::kLower});
  EXPECT_EQ(alone.dump(),
            R"({"bench":"a.b","value":300.0,"unit":"bytes","reference":null,"reference_value":null,"ratio":300.0,)"
            R"("bar":256.0,"better":"lower","interval":null,"counts":[],"by":null})");
}

TEST(Rows, WithoutARatioAreCountedAndLeftOut) {
  Bench bench(Settings{});
  Row row = row_of(9, {1, 1}, {});
  row.reference_value = 0;
  bench.add(row);
  row.value = 0;
  bench.add(row);
  EXPECT_EQ(bench.unmeasured(), 2);
  EXPECT_TRUE(bench.rows().empty());
  bench.add(row_of(9, {1, 1}, {}));
  EXPECT_EQ(bench.rows().size(), 1U);
}

TEST(Table, SaysWhatHoldsByWhatAndWhatIsMissed) {
  const Row by_ratio = row_of(9.9, {1, 1}, {});
  const Row missed = row_of(5, {1, 1}, {});
  EXPECT_THAT(to_text(by_ratio), testing::HasSubstr("holds by ratio"));
  EXPECT_THAT(to_text(missed), testing::HasSubstr("MISSED"));
  EXPECT_THAT(to_markdown({by_ratio, missed}), testing::HasSubstr("**missed**"));
  EXPECT_EQ(summary({by_ratio, missed}), "2 rows: 1 bars hold, 0 of them by the interval; missed: suite.row");
}

TEST(Table, ShowsFiguresWithTheDigitsThatSaySomething) {
  EXPECT_EQ(figure(0), "0.000");
  EXPECT_EQ(figure(0.97312), "0.973");
  EXPECT_EQ(figure(512.34), "512.3");
  EXPECT_EQ(figure(1234567.8), "1,234,568");
  EXPECT_EQ(figure(-1234.5), "-1,234");
  EXPECT_EQ(figure(123456), "123,456");
}

TEST(Contents, AreToldFromAllOthers) {
  std::vector<std::byte> bytes(1003);
  fill(bytes, 7, 1);
  EXPECT_TRUE(check(bytes, 7, 1).has_value());
  EXPECT_FALSE(check(bytes, 7, 2).has_value());
  EXPECT_FALSE(check(bytes, 8, 1).has_value());
  EXPECT_FALSE(check(std::span(bytes).subspan(8), 7, 1).has_value());
  for (const std::size_t at : {std::size_t{0}, std::size_t{511}, std::size_t{1002}}) {
    bytes[at] ^= std::byte{1};
    EXPECT_FALSE(check(bytes, 7, 1).has_value()) << at;
    bytes[at] ^= std::byte{1};
  }
}

}  // namespace
}  // namespace terrace::bench
