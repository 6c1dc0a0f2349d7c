// SPDX-License-Identifier: Apache-2.0
// A perturbed workload is one that a reader takes, differs in each repetition by about the share that was asked for,
// and is the same for the same seed.
#include "workload/perturb.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "workload/generator.h"
#include "workload/reader.h"
#include "workload/writer.h"

namespace terrace::workload {
namespace {

constexpr double kShare = 0.1;
constexpr std::uint64_t kRepetitions = 4;

Workload training() {
  Recipe recipe;
  recipe.model = *model("gpt2-1.5b");
  recipe.offload = {true, true, true, true, false};
  return generate(recipe)->workload;
}

Node node() { return *reference_node("g10"); }

struct Changes {
  double accesses = 0;
  double gone = 0;
  double came = 0;
};

Changes changes(const Workload& before, const Workload& after) {
  Changes sum;
  for (std::size_t at = 0; at < after.runs.size(); ++at) {
    const auto was = leased(before.runs[at % before.runs.size()]);
    const auto is = leased(after.runs[at]);
    std::vector<TensorId> same;
    std::ranges::set_intersection(was, is, std::back_inserter(same));
    sum.accesses += static_cast<double>(was.size());
    sum.gone += static_cast<double>(was.size() - same.size());
    sum.came += static_cast<double>(is.size() - same.size());
  }
  return sum;
}

TEST(Perturb, ATenthOfTheAccessesIsAnother) {
  const Workload before = training();
  const Workload after = perturbed(before, node(), {.share = kShare, .seed = 3, .repetitions = kRepetitions});
  ASSERT_EQ(after.runs.size(), before.runs.size() * kRepetitions);
  EXPECT_EQ(after.steps.size(), before.steps.size() * kRepetitions);
  const Changes found = changes(before, after);
  EXPECT_NEAR(found.came / found.accesses, kShare * 2 / 3, 0.02) << "replaced, and inserted";
  EXPECT_LT(found.gone / found.accesses, kShare * 2 / 3 + 0.01) << "replaced, and dropped";
  EXPECT_GT(found.gone / found.accesses, kShare / 3) << "births stay";
  EXPECT_EQ(compute_time(after.runs), compute_time(before.runs) * kRepetitions);
}

TEST(Perturb, AReaderTakesIt) {
  const Node where = node();
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    const Workload made = perturbed(training(), where, {.share = 0.5, .seed = seed, .repetitions = 2});
    std::ostringstream text;
    write(made, text);
    const auto back = read(text.str(), "perturbed", &where);
    ASSERT_TRUE(back) << "seed " << seed << ": " << back.error().message;
    EXPECT_EQ(*back, made);
  }
}

TEST(Perturb, TheSeedSaysWhatChanges) {
  const Perturbation perturbation{.share = kShare, .seed = 3, .repetitions = 2};
  const Workload once = perturbed(training(), node(), perturbation);
  EXPECT_EQ(once, perturbed(training(), node(), perturbation));
  EXPECT_NE(once.runs, perturbed(training(), node(), {.share = kShare, .seed = 4, .repetitions = 2}).runs);
  const auto half = static_cast<std::ptrdiff_t>(once.runs.size() / 2);
  EXPECT_FALSE(std::equal(once.runs.begin(), once.runs.begin() + half, once.runs.begin() + half))
      << "repetitions differ";
}

TEST(Perturb, NothingChangesWhereNothingIsAskedFor) {
  const Workload before = training();
  EXPECT_EQ(perturbed(before, node(), {.share = 0, .seed = 3, .repetitions = 1}).runs, before.runs);
}

}  // namespace
}  // namespace terrace::workload
