// SPDX-License-Identifier: Apache-2.0
// Shows with which catalogs a daemon would go on: of the same tiers in the same files, and of tenants that it has, by
// their names; and that what a configuration leaves to the machine stays what it was.
#include "front/survival/succession.h"

#include <gmock/gmock.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/bytes.h"
#include "base/mapping.h"
#include "engine/catalog/memory.h"
#include "front/node/node.h"

namespace terrace::front {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Successor : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "succession-XXXXXX").string();
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    for (const char* file : {"a", "b"}) std::ofstream(folder_ / file) << "x";
    config_.limits.sessions_max = 4;
    config_.limits.tensors_per_session_max = 16;
    config_.tenants.resize(2);
    config_.tenants[0].name = "first";
    config_.tenants[1].name = "second";
    config_.tiers.resize(2);
    config_.tiers[0].kind = config::TierKind::kMemory;
    config_.tiers[0].capacity.bytes = 32 * kMiB;
    config_.tiers[1].kind = config::TierKind::kBlock;
    config_.tiers[1].capacity.bytes = 64 * kMiB;
    config_.tiers[1].paths = {folder_ / "a", folder_ / "b"};
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // What a daemon of `config_` leaves, with a session of its tenant `socket`.
  service::Adopted left(std::optional<std::uint32_t> socket) const {
    const engine::CatalogShape shape{config_.limits.sessions_max, config_.limits.tensors_per_session_max};
    const std::uint64_t bytes = align_up(engine::CatalogMemory::bytes_needed(shape), kPageBytes);
    auto memory = sealed_memfd("catalog", bytes);
    const auto range = AddressRange::map(memory->get(), bytes, PROT_READ | PROT_WRITE);
    auto catalog = engine::CatalogMemory::format({range->data(), bytes}, shape);
    const engine::Options options = engine_options(config_);
    std::vector<engine::TierRecord> tiers;
    for (const engine::TierOptions& tier : options.tiers) tiers.push_back(engine::tier_record(tier));
    catalog.put(tiers);
    if (socket) {
      engine::SessionRecord session;
      session.id = 7;
      session.tenant = options.tenants.at(*socket);
      session.mapped_bytes[1] = 2 * kMiB;
      catalog.put(1, session);
    }
    catalog.commit();
    service::Adopted adopted;
    adopted.emplace(kCatalogName, std::move(*memory));
    return adopted;
  }
  static std::string why_not(const config::Config& config, const service::Adopted& adopted) {
    const auto fits = check_succession(config, adopted.at(kCatalogName).get());
    return fits ? "" : fits.error().message;
  }

  std::filesystem::path folder_;
  config::Config config_;
};

TEST_F(Successor, NeedsTheSameTiersInTheSameFilesInTheirOrder) {
  const service::Adopted adopted = left(0);
  EXPECT_EQ(why_not(config_, adopted), "");
  config::Config other = config_;
  other.tiers[1].capacity.bytes = 66 * kMiB;
  EXPECT_THAT(why_not(other, adopted), HasSubstr("tier 1 had 67108864 bytes"));
  other = config_;
  std::swap(other.tiers[1].paths[0], other.tiers[1].paths[1]);
  EXPECT_THAT(why_not(other, adopted), HasSubstr("other files"));
  other.tiers[1].paths = {folder_ / "a", folder_ / "none"};
  EXPECT_THAT(why_not(other, adopted), HasSubstr("other files"));
  other = config_;
  other.limits.sessions_max = 5;
  EXPECT_THAT(why_not(other, adopted), HasSubstr("limits.sessions_max"));
}

TEST_F(Successor, FindsTenantsByTheirNames) {
  const service::Adopted adopted = left(1);
  config::Config other = config_;
  std::swap(other.tenants[0], other.tenants[1]);
  EXPECT_EQ(why_not(other, adopted), "");
  engine::SessionRecord session;
  session.tenant = engine_options(config_).tenants.at(1);
  EXPECT_EQ(engine::tenant_socket(engine_options(other), session), 0u);
  other.tenants.pop_back();
  EXPECT_EQ(why_not(other, adopted), "") << "nobody is of the other one";
  other.tenants[0].name = "third";
  EXPECT_THAT(why_not(other, adopted), HasSubstr("tenant that is not configured any more"));
}

TEST_F(Successor, KeepsWhatPercentCameTo) {
  config::Config other = config_;
  other.tiers[1].capacity = {.bytes = 60 * kMiB, .percent = 50};
  EXPECT_EQ(why_not(other, left(0)), "");
  EXPECT_EQ(continued(other, left(0)).tiers[1].capacity.bytes, 64 * kMiB);
  EXPECT_EQ(continued(other, left(std::nullopt)).tiers[1].capacity.bytes, 60 * kMiB) << "there is nobody to go on with";
  EXPECT_EQ(continued(other, {}).tiers[1].capacity.bytes, 60 * kMiB);
  other.tiers[1].paths.push_back(folder_ / "c");
  EXPECT_EQ(continued(other, left(0)).tiers[1].capacity.bytes, 60 * kMiB) << "64 MiB is no number of rows of three";
  other.tiers.insert(other.tiers.begin(), other.tiers[0]);
  other.tiers[0].kind = config::TierKind::kDevice;
  other.tiers[1].capacity.percent = other.tiers[0].capacity.percent = 10;
  const config::Config shifted = continued(other, left(0));
  for (std::size_t tier = 0; tier < 3; ++tier)
    EXPECT_EQ(shifted.tiers[tier].capacity.bytes, other.tiers[tier].capacity.bytes) << "of other kinds, " << tier;
  other = config_;
  other.tiers[1].capacity.bytes = 60 * kMiB;
  EXPECT_EQ(continued(other, left(0)).tiers[1].capacity.bytes, 60 * kMiB) << "a size that was written counts";
}

TEST_F(Successor, KnowsTheGpusByWhoTheyAre) {
  config_.tiers.insert(config_.tiers.begin(), 2, config::TierConfig{});
  for (std::size_t gpu = 0; gpu < 2; ++gpu) {
    config_.tiers[gpu].kind = config::TierKind::kDevice;
    config_.tiers[gpu].capacity.bytes = 32 * kMiB;
    config_.tiers[gpu].device = "cuda:" + std::to_string(gpu);
    config_.tiers[gpu].gpu_identity = 100 + gpu;
  }
  const service::Adopted adopted = left(0);
  EXPECT_THAT(former_gpus(adopted).value(), ElementsAre(100, 101));
  EXPECT_FALSE(former_gpus(left(std::nullopt))) << "nobody has sessions";
  EXPECT_FALSE(former_gpus(service::Adopted{}));
  EXPECT_EQ(why_not(config_, adopted), "");
  config::Config other = config_;
  other.tiers[1].failure = Error{ErrorCode::kFailedPrecondition, "no CUDA driver", 0};
  EXPECT_THAT(why_not(other, adopted),
              HasSubstr("sessions have memory in cuda:1, which it cannot use: no CUDA driver"));
  other.tiers[1].take_back = config::TakeBack::kGiveUp;
  EXPECT_EQ(why_not(other, adopted), "");
  other = config_;
  for (const ErrorCode code : {ErrorCode::kResourceExhausted, ErrorCode::kDataLoss}) {
    other.tiers[1].failure = Error{code, "it has no room beside this one, or is lost in any case", 0};
    EXPECT_EQ(why_not(other, adopted), "");
  }
  other = config_;
  other.tiers[0].failure = Error{ErrorCode::kFailedPrecondition, "no CUDA driver", 0};
  EXPECT_EQ(why_not(other, adopted), "") << "nobody has anything there";
  other = config_;
  other.tiers[0].gpu_identity = 102;
  EXPECT_THAT(why_not(other, adopted), HasSubstr("of another device in tier 0"));
  other.tiers[0].device = "emulated";
  EXPECT_THAT(why_not(other, adopted), HasSubstr("of another device in tier 0"));
}

TEST_F(Successor, IsAskedOfAProgramThatKnowsOfIt) {
  const service::Adopted adopted = left(0);
  const auto asked = [&](std::vector<std::string> command) {
    const auto said = ask_successor(std::move(command), adopted.at(kCatalogName));
    return said ? "version " + *said : said.error().message;
  };
  EXPECT_THAT(asked({"/bin/true"}), HasSubstr("/bin/true is no terraced that knows of upgrades"));
  EXPECT_THAT(asked({"/bin/false"}), HasSubstr("without a word"));
  EXPECT_THAT(asked({(folder_ / "a").string()}), HasSubstr("cannot be started"));
  EXPECT_EQ(asked({"/bin/sh", "-c", "test -f /proc/self/fd/3 && echo 'goes on: terraced 7.8'"}), "version 7.8");
  EXPECT_THAT(asked({"/bin/sh", "-c", "echo so it is; exit 3"}), HasSubstr("could not go on: so it is"));
}

}  // namespace
}  // namespace terrace::front
