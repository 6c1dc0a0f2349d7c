// SPDX-License-Identifier: Apache-2.0
// Shows what a successor is asked before anything is stopped: whether its options and its version fit the catalog of an
// engine that still works. It learns the very reason why not, and changes nothing by asking.
#include <gmock/gmock.h>

#include <cstring>

#include "unit/engine/harness.h"

namespace terrace::engine {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Those of the harness's engine, but for the memory.
Options options_of(std::uint64_t device = 4 * kMiB, std::uint64_t memory = 8 * kMiB, std::uint64_t block = 64 * kMiB) {
  Options options = three_tiers(device, memory, block);
  options.sessions_max = Harness::shape().sessions_max;
  return options;
}

class Succession : public ::testing::Test {
 protected:
  Succession() { harness_.write(*client_, harness_.create(*client_, "a", kMiB), 7); }

  std::span<const std::byte> catalog() { return harness_.catalog_bytes(); }
  std::string refusal(const Options& options, const CatalogShape& shape, std::span<const std::byte> catalog) {
    const auto could = Engine::check_succession(options, shape, catalog);
    if (could) return "none";
    EXPECT_EQ(could.error().code, ErrorCode::kFailedPrecondition) << could.error().message;
    return could.error().message;
  }
  std::string refusal(const Options& options) { return refusal(options, Harness::shape(), catalog()); }
  template <typename T>
  T& at(std::size_t offset) {
    return *reinterpret_cast<T*>(harness_.catalog_bytes().data() + offset);
  }

  Harness harness_{three_tiers()};
  Harness::Client* client_ = harness_.open();
};

TEST_F(Succession, OfTheSameOptionsIsPossibleWhileTheEngineWorks) {
  const std::vector<std::byte> before(catalog().begin(), catalog().begin() + 64 * kKiB);
  harness_.send(client_->id, Move{shm::kPlaceBlock, {{Slot{0}, 1}}});
  const std::vector<std::byte> under_way(catalog().begin(), catalog().begin() + 64 * kKiB);
  EXPECT_EQ(refusal(options_of()), "none");
  EXPECT_EQ(std::memcmp(under_way.data(), catalog().data(), under_way.size()), 0) << "nothing is changed";
  harness_.settle();
  EXPECT_EQ(harness_.read(*client_, {Slot{0}, 1}), 7u);
}

TEST_F(Succession, OfOtherTiersIsNot) {
  EXPECT_THAT(refusal(options_of(6 * kMiB)),
              AllOf(HasSubstr("tier 0 had 4194304 bytes and is to have 6291456"), HasSubstr("discard it")));
  EXPECT_THAT(refusal(options_of(4 * kMiB, 8 * kMiB, 32 * kMiB)), HasSubstr("tier 2 had 67108864"));
  Options options = options_of();
  options.tiers.pop_back();
  EXPECT_THAT(refusal(options), HasSubstr("tier 2 had 67108864 bytes and is to have 0"));
  options = options_of();
  options.tiers.insert(options.tiers.begin(), options.tiers.front());
  EXPECT_THAT(refusal(options), HasSubstr("tier 1 had 8388608 bytes and is to have 4194304"));
  options = options_of();
  options.tiers[1].segment_bytes *= 2;
  EXPECT_THAT(refusal(options), HasSubstr("of other tiers (tier 1"));
  options = options_of();
  options.tiers[1].kind = tier::Kind::kDevice;
  EXPECT_THAT(refusal(options), HasSubstr("of other tiers (tier 1"));
  options = options_of();
  options.tiers[0].identity = 7;
  EXPECT_THAT(refusal(options), HasSubstr("of another device in tier 0"));
  options = options_of();
  options.tiers[0].high_mark = 0.5;
  EXPECT_EQ(refusal(options), "none") << "no record depends on it";
}

TEST_F(Succession, OfOtherFilesOrWithoutTheTenantIsNot) {
  Options options = options_of();
  options.tiers[2].identity = 7;
  EXPECT_THAT(refusal(options), HasSubstr("of other files of tier 2"));
  options = options_of();
  options.tenants = {5};
  EXPECT_THAT(refusal(options), HasSubstr("of a tenant that is not configured any more"));
  options.tenants = {5, 0};
  EXPECT_EQ(refusal(options), "none") << "wherever it stands now";
}

TEST_F(Succession, OfAnotherShapeOrVersionIsNot) {
  CatalogShape shape = Harness::shape();
  ++shape.sessions_max;
  EXPECT_THAT(refusal(options_of(), shape, catalog()),
              AllOf(HasSubstr("holds 16 sessions of 256 tensors"), HasSubstr("are 17 and 256")));
  shape = Harness::shape();
  --shape.tensors_per_session_max;
  EXPECT_THAT(refusal(options_of(), shape, catalog()), HasSubstr("are 16 and 255"));
  EXPECT_THAT(refusal(options_of(), Harness::shape(), catalog().first(100)),
              HasSubstr("100 bytes, which is too short"));
  const std::uint64_t needed = CatalogMemory::bytes_needed(Harness::shape());
  EXPECT_THAT(refusal(options_of(), Harness::shape(), catalog().first(needed - 1)),
              HasSubstr("its shape needs " + std::to_string(needed)));
  ++at<std::uint64_t>(0);
  EXPECT_THAT(refusal(options_of()), HasSubstr("does not begin as one does"));
  --at<std::uint64_t>(0);
  ++at<std::uint32_t>(8);
  EXPECT_THAT(refusal(options_of()), HasSubstr("of version " + std::to_string(kCatalogVersion + 1)));
  --at<std::uint32_t>(8);
  EXPECT_EQ(refusal(options_of()), "none");
}

TEST_F(Succession, OfOptionsThatMakeNoEngineIsNot) {
  Options options = options_of();
  ++options.sessions_max;
  const auto refused = [&] {
    const auto could = Engine::check_succession(options, Harness::shape(), catalog());
    const auto taken = Engine::restore(options, harness_.catalog, harness_.survivors());
    EXPECT_FALSE(could.has_value() || taken.has_value());
    if (could || taken) return std::string();
    EXPECT_EQ(could.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(taken.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(could.error().message, taken.error().message);
    return could.error().message;
  };
  EXPECT_THAT(refused(), HasSubstr("17 sessions, and the catalog holds 16"));
  options = options_of();
  options.weights = {1, 0};
  EXPECT_THAT(refused(), HasSubstr("a tenant's weight is 0"));
  options = {};
  EXPECT_THAT(refused(), HasSubstr("no tiers"));
}

// What the question passes over, since it may be changing just then, the successor itself finds out.
TEST_F(Succession, IsAskedForAgainByTheSuccessorItself) {
  const auto taken = Engine::restore(options_of(6 * kMiB), harness_.catalog, harness_.survivors());
  ASSERT_FALSE(taken.has_value());
  EXPECT_EQ(taken.error().code, ErrorCode::kFailedPrecondition);
  EXPECT_THAT(taken.error().message, HasSubstr("tier 0 had 4194304 bytes"));
  ++at<std::uint32_t>(8);
  const auto opened = CatalogMemory::open(harness_.catalog_bytes(), Harness::shape());
  ASSERT_FALSE(opened.has_value());
  EXPECT_EQ(opened.error().code, ErrorCode::kFailedPrecondition);
  --at<std::uint32_t>(8);
  harness_.restart([] { return true; });
  EXPECT_EQ(harness_.read(*client_, {Slot{0}, 1}), 7u) << "and nothing was changed by all that";
}

}  // namespace
}  // namespace terrace::engine
