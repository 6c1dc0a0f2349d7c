// SPDX-License-Identifier: Apache-2.0
#include "bench/contents.h"

#include <fmt/format.h>

#include <cstring>

namespace terrace::bench {
namespace {

// A multiplication a word, which compilers turn into vector code; the odd multiplier tells all places apart.
std::uint64_t word_at(std::uint64_t seed, std::uint64_t index) { return seed + index * 0x9E3779B97F4A7C15u; }

std::uint64_t seed_of(std::uint64_t tensor, std::uint64_t version) {
  std::uint64_t mixed = (tensor * 1'000'003 + version + 1) * 0xBF58476D1CE4E5B9u;
  return mixed ^ mixed >> 29;
}

}  // namespace

void fill(std::span<std::byte> bytes, std::uint64_t tensor, std::uint64_t version) {
  const std::uint64_t seed = seed_of(tensor, version);
  const std::size_t words = bytes.size() / sizeof(std::uint64_t);
  for (std::size_t i = 0; i < words; ++i) {
    const std::uint64_t word = word_at(seed, i);
    std::memcpy(bytes.data() + i * sizeof(word), &word, sizeof(word));
  }
  const std::uint64_t last = word_at(seed, words);
  std::memcpy(bytes.data() + words * sizeof(last), &last, bytes.size() % sizeof(last));
}

Result<void> check(std::span<const std::byte> bytes, std::uint64_t tensor, std::uint64_t version) {
  const std::uint64_t seed = seed_of(tensor, version);
  const std::size_t words = bytes.size() / sizeof(std::uint64_t);
  const auto differs = [&](std::size_t index, std::size_t size) {
    const std::uint64_t word = word_at(seed, index);
    return std::memcmp(bytes.data() + index * sizeof(word), &word, size) != 0;
  };
  for (std::size_t i = 0; i <= words; ++i) {
    const std::size_t size = i < words ? sizeof(std::uint64_t) : bytes.size() % sizeof(std::uint64_t);
    if (size == 0 || !differs(i, size)) continue;
    return fail(ErrorCode::kDataLoss, fmt::format("wrong bytes at {} of {} of tensor {}, content {}",
                                                  i * sizeof(std::uint64_t), bytes.size(), tensor, version));
  }
  return {};
}

}  // namespace terrace::bench
