// SPDX-License-Identifier: Apache-2.0
// Shows that what is kept is bounded in number and in the bytes of its names, has unique names, and is closed when it
// goes.
#include "supervise/kept_descriptors.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "service/descriptor_store.h"

namespace terrace::supervise {
namespace {

Fd memory() { return Fd(memfd_create("kept", MFD_CLOEXEC)); }
bool is_open(int descriptor) { return access(("/proc/self/fd/" + std::to_string(descriptor)).c_str(), F_OK) == 0; }

TEST(KeptDescriptors, AreBoundedAndUnique) {
  KeptDescriptors kept(2);
  EXPECT_TRUE(kept.add("a", memory()));
  EXPECT_FALSE(kept.add("a", memory()));
  EXPECT_TRUE(kept.add("b", memory()));
  Fd third = memory();
  const int number = third.get();
  EXPECT_FALSE(kept.add("c", std::move(third)));
  EXPECT_FALSE(is_open(number)) << "refused, and so closed";
  const int first = kept.by_name().at("a").get();
  EXPECT_TRUE(kept.remove("a"));
  EXPECT_FALSE(is_open(first));
  EXPECT_FALSE(kept.remove("a"));
  EXPECT_TRUE(kept.add("c", memory()));
  EXPECT_EQ(kept.size(), 2u);
}

TEST(KeptDescriptors, HaveNamesThatFitIntoOneEnvironment) {
  KeptDescriptors kept(1'000'000);
  std::size_t added = 0;
  for (std::string name(service::kDescriptorNameBytesMax, 'a'); kept.add(name, Fd()); ++added)
    name.replace(0, std::to_string(added).size(), std::to_string(added));
  EXPECT_EQ(added, service::kAllNamesBytesMax / (service::kDescriptorNameBytesMax + 1));
  EXPECT_TRUE(kept.add("short", Fd()));
  EXPECT_TRUE(kept.remove(kept.by_name().begin()->first));
  EXPECT_TRUE(kept.add(std::string(service::kDescriptorNameBytesMax, 'b'), Fd())) << "where another one was";
}

}  // namespace
}  // namespace terrace::supervise
