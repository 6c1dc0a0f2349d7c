// SPDX-License-Identifier: Apache-2.0
// Shows that whatever a disk has instead of what was written to it is found out, in any page of any chunk: a bit that
// flipped, what was there before (a lost write), half of it (a torn one), what was written elsewhere (a misdirected
// one). The test rewrites the block file of a real daemon, page by page, where it finds the tensors' bytes.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <unordered_map>

#include "base/bytes.h"
#include "base/fd.h"
#include "faults/cases.h"

namespace terrace::faults {
namespace {

using e2e::fill;
using e2e::first_difference;
using e2e::kMiB;
using e2e::Terraced;

constexpr std::uint64_t kTierMib = 64;
constexpr std::size_t kGroups = 16;
constexpr std::size_t kSmall = 31;                            // of a group: a page each
constexpr std::uint64_t kLargeBytes = 2 * kMiB + kPageBytes;  // and one of three chunks

using Image = std::vector<std::byte>;

Image read_file(const std::string& path) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  Image image(kTierMib * kMiB);
  std::size_t at = 0;
  for (ssize_t got = 1; got > 0 && at < image.size(); at += static_cast<std::size_t>(got))
    got = ::pread(file.get(), image.data() + at, image.size() - at, static_cast<off_t>(at));
  EXPECT_EQ(at, image.size());
  return image;
}

std::uint64_t first_word(const std::byte* page) {
  std::uint64_t word = 0;
  std::memcpy(&word, page, sizeof word);
  return word;
}

class WrongBytes : public ::testing::Test {
 protected:
  WrongBytes() : client_(terraced_.connect()) {
    std::vector<TensorSpec> specs;
    for (std::size_t i = 0; i < kGroups * (kSmall + 1); ++i)
      specs.push_back(
          {.name = "t" + std::to_string(i), .bytes = i % (kSmall + 1) == 0 ? kLargeBytes : std::uint64_t{kPageBytes}});
    tensors_ = client_.create(specs).value();
  }

  // Writes all of them, and has them on the disk alone.
  void write_all(std::uint64_t version) {
    for (std::size_t group = 0; group < kGroups; ++group) {
      const std::span some(tensors_.data() + group * (kSmall + 1), kSmall + 1);
      for (const Tensor& tensor : some) {
        const Result<Lease> lease = client_.acquire(tensor, {.mode = Mode::kOverwrite});
        ASSERT_TRUE(lease.has_value()) << lease.error().message;
        fill(lease->writable_bytes(), tensor.handle(), version);
      }
      const Result<void> out = client_.swap_out(some);
      ASSERT_TRUE(out.has_value()) << out.error().message;
    }
  }

  // One page of each tensor, at random: its offset in the file.
  std::vector<std::uint64_t> choose_pages(const Image& image, std::uint64_t version) {
    std::unordered_map<std::uint64_t, std::uint64_t> offsets;  // by the first word of a page
    for (std::uint64_t offset = 0; offset < image.size(); offset += kPageBytes)
      offsets[first_word(image.data() + offset)] = offset;
    std::vector<std::uint64_t> chosen;
    for (const Tensor& tensor : tensors_) {
      Image bytes(tensor.bytes());
      fill(bytes, tensor.handle(), version);
      const std::uint64_t page = random_() % (bytes.size() / kPageBytes) * kPageBytes;
      const auto found = offsets.find(first_word(bytes.data() + page));
      if (found == offsets.end()) {
        ADD_FAILURE() << tensor.name() << " is nowhere in the file";
        return {};
      }
      EXPECT_EQ(std::memcmp(image.data() + found->second, bytes.data() + page, kPageBytes), 0);
      chosen.push_back(found->second);
    }
    return chosen;
  }

  // What the disk is to have there instead.
  Image wrong(std::span<const std::byte> right, std::span<const std::byte> before, std::span<const std::byte> others) {
    Image page(right.begin(), right.end());
    switch (random_() % 4) {
      case 0:
        page[random_() % kPageBytes] ^= std::byte{1} << random_() % 8;
        break;
      case 1:
        page.assign(before.begin(), before.end());
        break;
      case 2:  // some sectors of 512 bytes, at least one and not all, did not arrive
        std::ranges::copy(before.first(512 * (1 + random_() % 7)), page.begin());
        break;
      default:
        page.assign(others.begin(), others.end());
    }
    return page;
  }

  const Terraced terraced_{{.block_mib = kTierMib}};
  const LogOfFailure log_{terraced_};
  const unsigned seed_ = std::random_device()();
  std::mt19937_64 random_{seed_};
  Client client_;
  std::vector<Tensor> tensors_;
};

TEST_F(WrongBytes, AreFoundOutEveryTimeInAnyPageOfAnyChunk) {
  std::printf("seed %u\n", seed_);
  std::uint64_t wrongs = 0;
  std::uint64_t found = 0;
  const Fd file(::open(terraced_.block_file().c_str(), O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(file);
  const std::uint64_t rounds = times(2, 200);
  for (std::uint64_t round = 0; round < rounds && !HasFailure(); ++round) {
    ASSERT_NO_FATAL_FAILURE(write_all(2 * round + 1));
    const Image before = read_file(terraced_.block_file());
    ASSERT_NO_FATAL_FAILURE(write_all(2 * round + 2));
    const Image right = read_file(terraced_.block_file());
    const std::vector<std::uint64_t> pages = choose_pages(right, 2 * round + 2);
    ASSERT_EQ(pages.size(), tensors_.size());
    const auto page_of = [](const Image& image, std::uint64_t offset) {
      return std::span(image).subspan(offset, kPageBytes);
    };
    for (std::size_t i = 0; i < pages.size(); ++i) {
      const std::uint64_t other = pages[(i + 1 + random_() % (pages.size() - 1)) % pages.size()];
      const Image page = wrong(page_of(right, pages[i]), page_of(before, pages[i]), page_of(right, other));
      ASSERT_EQ(::pwrite(file.get(), page.data(), page.size(), static_cast<off_t>(pages[i])),
                static_cast<ssize_t>(kPageBytes));
    }
    for (const Tensor& tensor : tensors_) {
      ++wrongs;
      const Result<Lease> lease = client_.acquire(tensor);
      if (!lease && lease.error().code == ErrorCode::kDataLoss) ++found;
    }
  }
  EXPECT_EQ(found, wrongs);
  ASSERT_NO_FATAL_FAILURE(write_all(0));
  for (const Tensor& tensor : tensors_) {
    const Result<Lease> lease = client_.acquire(tensor);
    ASSERT_TRUE(lease.has_value()) << lease.error().message;
    EXPECT_EQ(first_difference(lease->bytes(), tensor.handle(), 0), tensor.bytes()) << "rewritten, they are right";
  }
  EXPECT_TRUE(terraced_.serves_on());
  figure(26, std::to_string(found) + " of " + std::to_string(wrongs) +
                 " pages that were not as they had been written were found out");
}

}  // namespace
}  // namespace terrace::faults
