// SPDX-License-Identifier: Apache-2.0
// Shows that each number of the status is exported under its name and labels, that histograms are cumulative, and that
// promtool finds nothing to say about the text.
#include "metrics/families.h"

#include <gmock/gmock.h>
#include <prometheus/text_serializer.h>

#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace terrace::metrics {
namespace {

using testing::HasSubstr;

engine::Status sample() {
  engine::Status status;
  engine::TierStatus memory{.name = "memory", .kind = tier::Kind::kMemory, .capacity_bytes = 9007199254740991};
  memory.used_bytes = 11;
  memory.checksum_failures = 2;
  memory.lost_tensors = 3;
  memory.fragmentation = 0.25;
  memory.evictions = {1, 2, 3, 4, 5};
  status.tiers.push_back(memory);
  engine::LinkStatus link{.link = {mover::LinkKind::kHostToDevice, 1}, .bytes = 77, .transfers = 6, .duration = {}};
  link.duration.counts[0] = 2;
  link.duration.counts[3] = 3;
  link.duration.counts[engine::Histogram::kBuckets - 1] = 1;
  link.duration.sum_seconds = 1.5;
  status.links.push_back(link);
  status.places.push_back({.place = 0, .name = "host", .hits = 5, .waits = 6, .errors = 7, .wait = {}});
  for (const std::uint32_t number : {1u, 2u}) {
    engine::SessionStatus& session = status.sessions.emplace_back();
    session.session = SessionId{number};
    session.tenant = {1, 1000 + number};
    session.pid = 4242;
    session.tensors = 2 + number;
    session.tensor_bytes = 100 * number;
    session.leases = number;
  }
  status.prefetches.late = 8;
  status.restored = {.sessions = 12, .tensors = 13, .unanswered_requests = 14, .transfers = 15};
  status.resubmitted_requests = 16;
  return status;
}

std::string text(const engine::Status& status) {
  const std::vector<std::string> names{"default", "team"};
  auto all = vital_families(true, "1.2.3");
  for (auto& one : families(status, names)) all.push_back(std::move(one));
  return prometheus::TextSerializer().Serializer::Serialize(all);
}

TEST(Families, ExportEachNumber) {
  const std::string out = text(sample());
  for (const char* line : {"terrace_up 1\n",
                           "terrace_build_info{version=\"1.2.3\"} 1\n",
                           "terrace_tier_capacity_bytes{tier=\"memory\"} 9007199254740991\n",
                           "terrace_tier_used_bytes{tier=\"memory\"} 11\n",
                           "terrace_tier_fragmentation_ratio{tier=\"memory\"} 0.25\n",
                           "terrace_tier_serving{tier=\"memory\"} 1\n",
                           "terrace_checksum_failures_total{tier=\"memory\"} 2\n",
                           "terrace_lost_tensors_total{tier=\"memory\"} 3\n",
                           "terrace_evictions_total{tier=\"memory\",reason=\"taken_back\"} 5\n",
                           "terrace_transfer_bytes_total{link=\"host_to_device:1\"} 77\n",
                           "terrace_acquires_total{place=\"host\",result=\"hit\"} 5\n",
                           "terrace_acquires_total{place=\"host\",result=\"error\"} 7\n",
                           "terrace_prefetches_total{outcome=\"late\"} 8\n",
                           "terrace_sessions{tenant=\"default\"} 0\n",
                           "terrace_sessions{tenant=\"team\"} 2\n",
                           "terrace_tensors{tenant=\"team\"} 7\n",
                           "terrace_tensor_bytes{tenant=\"team\"} 300\n",
                           "terrace_user_tensor_bytes_max{tenant=\"team\"} 200\n",
                           "terrace_leases{tenant=\"team\"} 3\n",
                           "terrace_restored_sessions 12\n",
                           "terrace_restored_tensors 13\n",
                           "terrace_restored_unanswered_requests 14\n",
                           "terrace_restored_transfers 15\n",
                           "terrace_resubmitted_requests_total 16\n"})
    EXPECT_THAT(out, HasSubstr(line));
}

TEST(Families, SayWhichTierDoesNotServe) {
  engine::Status status = sample();
  status.tiers.push_back({.name = "block", .kind = tier::Kind::kBlock, .failure = "its files are another's still"});
  const std::string out = text(status);
  EXPECT_THAT(out, HasSubstr("terrace_tier_serving{tier=\"memory\"} 1\nterrace_tier_serving{tier=\"block\"} 0\n"));
  EXPECT_THAT(out, testing::Not(HasSubstr("another's")));
}

TEST(Families, SayWhatTheDaemonTakesOfAGpu) {
  EXPECT_THAT(text(sample()), testing::Not(HasSubstr("terrace_gpu_context_bytes")));
  engine::Status status = sample();
  for (const char* name : {"device:0", "device:1"})
    status.tiers.push_back({.name = name, .kind = tier::Kind::kDevice, .context_bytes = 5});
  EXPECT_THAT(text(status), HasSubstr("terrace_gpu_context_bytes{tier=\"device:0\"} 5\n"
                                      "terrace_gpu_context_bytes{tier=\"device:1\"} 5\n"));
}

TEST(Families, SayWhatIsLeftOfAWriteBudget) {
  EXPECT_THAT(text(sample()), testing::Not(HasSubstr("write_budget")));
  engine::Status status = sample();
  status.tiers.push_back({.name = "block", .kind = tier::Kind::kBlock});
  status.tiers.back().write_budget_bytes_per_day = 100;
  status.tiers.back().write_budget_left_bytes = -7;
  EXPECT_THAT(text(status), HasSubstr("terrace_write_budget_left_bytes{tier=\"block\"} -7\n"));
}

TEST(Families, SayWhatATenantMayHave) {
  std::vector<config::TenantConfig> tenants(2);
  tenants[0].name = "free";
  EXPECT_TRUE(quota_families(tenants).empty());
  tenants[1].name = "bounded";
  tenants[1].quota_bytes = 7;
  EXPECT_EQ(prometheus::TextSerializer().Serializer::Serialize(quota_families(tenants)),
            "# HELP terrace_tenant_quota_bytes Bytes of homes that each user of the tenant's may have, as configured.\n"
            "# TYPE terrace_tenant_quota_bytes gauge\n"
            "terrace_tenant_quota_bytes{tenant=\"bounded\"} 7\n");
}

TEST(Families, HistogramsAreCumulative) {
  const std::string out = text(sample());
  EXPECT_THAT(out, HasSubstr("terrace_transfer_duration_seconds_count{link=\"host_to_device:1\"} 6\n"));
  EXPECT_THAT(out, HasSubstr("terrace_transfer_duration_seconds_sum{link=\"host_to_device:1\"} 1.5\n"));
  EXPECT_THAT(out, HasSubstr("terrace_transfer_duration_seconds_bucket{link=\"host_to_device:1\",le=\"+Inf\"} 6\n"));
}

TEST(Families, NeverNameAProcessOrAUser) {
  const std::string out = text(sample());
  EXPECT_THAT(out, testing::Not(HasSubstr("4242")));
  EXPECT_THAT(out, testing::Not(HasSubstr("1000")));
}

TEST(Families, PromtoolFindsNothingToSay) {
  if (std::system("promtool --version >/dev/null 2>&1") != 0)
    GTEST_SKIP() << "promtool is not installed (Debian package prometheus)";
  std::string file = testing::TempDir() + "terrace-metrics-XXXXXX";
  const int descriptor = ::mkstemp(file.data());
  ASSERT_GE(descriptor, 0);
  FILE* out = ::fdopen(descriptor, "w");
  std::fputs(text(sample()).c_str(), out);
  std::fclose(out);
  FILE* check = ::popen(("promtool check metrics <" + file + " 2>&1").c_str(), "r");
  ASSERT_NE(check, nullptr);
  std::string said;
  for (int c = std::fgetc(check); c != EOF; c = std::fgetc(check)) said += static_cast<char>(c);
  EXPECT_EQ(::pclose(check), 0) << said;
  EXPECT_EQ(said, "");
  std::remove(file.c_str());
}

}  // namespace
}  // namespace terrace::metrics
