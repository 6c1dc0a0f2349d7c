// SPDX-License-Identifier: Apache-2.0
// Shows that what stands in for newer glibcs in programs of wheels does what those do: it finds the unwinding tables
// that glibc finds, exceptions that are thrown with it are caught, and its random numbers differ.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <set>
#include <stdexcept>
#include <vector>

namespace {

using FindObject = int (*)(void*, dl_find_object*);

void* address_of(const char* function) { return ::dlsym(RTLD_DEFAULT, function); }

TEST(Portable, FindsTheTablesThatGlibcFinds) {
  const auto glibcs = reinterpret_cast<FindObject>(::dlvsym(RTLD_DEFAULT, "_dl_find_object", "GLIBC_2.35"));
  if (glibcs == nullptr) GTEST_SKIP() << "this glibc is older than 2.35";
  for (void* const address : {address_of("getpid"), address_of("cos"), __builtin_return_address(0)}) {
    dl_find_object ours{}, theirs{};
    ASSERT_EQ(0, ::_dl_find_object(address, &ours));
    ASSERT_EQ(0, glibcs(address, &theirs));
    EXPECT_EQ(theirs.dlfo_eh_frame, ours.dlfo_eh_frame);
    EXPECT_LE(ours.dlfo_map_start, address);
    EXPECT_GT(ours.dlfo_map_end, address);
  }
}

TEST(Portable, FindsNothingWhereThereIsNoCode) {
  dl_find_object found{};
  EXPECT_EQ(-1, ::_dl_find_object(&found, &found));
}

TEST(Portable, WhatIsThrownIsCaught) { EXPECT_THROW(static_cast<void>(std::vector<int>().at(1)), std::out_of_range); }

TEST(Portable, RandomNumbersDiffer) {
  std::set<unsigned> numbers;
  for (int i = 0; i < 16; ++i) numbers.insert(::arc4random());
  EXPECT_GT(numbers.size(), 8u);  // chance has it otherwise once in 10^70 runs or so
}

}  // namespace
