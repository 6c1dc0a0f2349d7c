// SPDX-License-Identifier: Apache-2.0
// Shows that a reference's memory is left alone by forks, and says of what pages it is.
#include "bench/memcpy_reference.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cerrno>
#include <fstream>

#include "base/bytes.h"
#include "bench/leftovers.h"

namespace terrace::bench {
namespace {

// Of this process, in the huge pages that were reserved.
std::uint64_t huge_kib() {
  std::ifstream lines("/proc/self/status");
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("HugetlbPages:")) return std::stoull(line.substr(13));
  return 0;
}

TEST(ReferenceMemory, IsNotInChildrenWhoseForkWouldTakeItsPagesAway) {
  const auto memory = ReferenceMemory::map(8 * kMiB);
  ASSERT_TRUE(memory.has_value());
  const auto is_mapped = [&] {
    unsigned char resident = 0;
    return ::mincore(memory->bytes().data(), kPageBytes, &resident) == 0 || errno != ENOMEM;
  };
  EXPECT_TRUE(is_mapped());
  auto child = Child::run([&] { return is_mapped() ? 1 : 0; });
  ASSERT_TRUE(child.has_value());
  EXPECT_EQ(child->wait(), 0);
}

TEST(MemcpyReference, SaysOfWhatPagesItIs) {
  const std::uint64_t before = huge_kib();
  auto reference = MemcpyReference::make(33 * kMiB);
  ASSERT_TRUE(reference.has_value());
  const std::uint64_t huge = huge_kib() - before;
  const char* const pages = huge == 0          ? " in ordinary pages"
                            : huge < 66 * kKiB ? " in huge pages in part"
                                               : " in huge pages";
  EXPECT_TRUE(reference->described().ends_with(pages)) << reference->described() << ", " << huge << " KiB are";
  const auto copied = reference->copy();
  ASSERT_TRUE(copied.has_value());
  EXPECT_GT(copied->bytes_per_second, 0);
}

}  // namespace
}  // namespace terrace::bench
