// SPDX-License-Identifier: Apache-2.0
// Shows that a scaled workload is the same one in smaller sizes and other times, on tiers that are smaller alike.
#include "workload/scaled.h"

#include <gtest/gtest.h>

#include <sstream>

#include "base/bytes.h"
#include "workload/generator.h"
#include "workload/reader.h"
#include "workload/writer.h"

namespace terrace::workload {
namespace {

Workload scaled_training() {
  Recipe recipe;
  recipe.model = *model("gpt2-1.5b");
  recipe.offload = {true, true, true, true, false};
  return generate(recipe)->workload;
}

TEST(Scaled, SizesAreDividedAndTimesMultiplied) {
  const Workload before = scaled_training();
  const Workload after = scaled(before, {.bytes = 100, .time = 0.25});
  ASSERT_EQ(after.tensors.size(), before.tensors.size());
  for (std::size_t i = 0; i < after.tensors.size(); ++i) {
    EXPECT_EQ(after.tensors[i].bytes % kPageBytes, 0u);
    EXPECT_GE(after.tensors[i].bytes, kPageBytes);
    EXPECT_NEAR(static_cast<double>(after.tensors[i].bytes), static_cast<double>(before.tensors[i].bytes) / 100,
                kPageBytes);
  }
  for (std::size_t i = 0; i < after.runs.size(); ++i) {
    EXPECT_EQ(after.runs[i].read, before.runs[i].read);
    EXPECT_EQ(after.runs[i].free, before.runs[i].free);
    EXPECT_NEAR(static_cast<double>(after.runs[i].compute.count()),
                static_cast<double>(before.runs[i].compute.count()) / 4, 1);
  }
  std::ostringstream text;
  write(after, text);
  EXPECT_EQ(*read(text.str(), "scaled"), after);
}

TEST(Scaled, TiersAreDividedAndWhatNeverFillsHoldsAllTensors) {
  const Workload workload = scaled(scaled_training(), {.bytes = 64, .time = 1});
  std::uint64_t all = 0;
  for (const Tensor& tensor : workload.tensors) all += tensor.bytes;
  const Node node = scaled(*reference_node("g10"), {.bytes = 64, .time = 1}, workload);
  EXPECT_EQ(node.hbm_bytes, 640 * kMiB);
  EXPECT_EQ(node.host_bytes, 2 * kGiB);
  EXPECT_GT(node.block_bytes, all);
  EXPECT_LT(node.block_bytes, all + all / 8);
  EXPECT_EQ(node.hbm, reference_node("g10")->hbm);
  EXPECT_EQ(scaled(*reference_node("g10-2tier"), {.bytes = 64, .time = 1}, workload).block_bytes, 0u);
}

TEST(Scaled, TheTimeScaleKeepsTheProportionOfTheLinks) {
  Node slow = *reference_node("g10");
  slow.hbm.in_bytes_per_s /= 4;
  slow.hbm.out_bytes_per_s /= 4;
  EXPECT_NEAR(time_scale(*reference_node("g10"), slow, 1), 4, 1e-6);
  EXPECT_NEAR(time_scale(*reference_node("g10"), slow, 16), 0.25, 1e-6);
}

}  // namespace
}  // namespace terrace::workload
