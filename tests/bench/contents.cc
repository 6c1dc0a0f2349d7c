// SPDX-License-Identifier: Apache-2.0
#include "bench/contents.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/bytes.h"

namespace terrace::bench {
namespace {

// A multiplication a word, which compilers turn into vector code; the odd multiplier tells all places apart.
std::uint64_t word_at(std::uint64_t seed, std::uint64_t index) { return seed + index * 0x9E3779B97F4A7C15u; }

std::uint64_t seed_of(std::uint64_t tensor, std::uint64_t version) {
  std::uint64_t mixed = (tensor * 1'000'003 + version + 1) * 0xBF58476D1CE4E5B9u;
  return mixed ^ mixed >> 29;
}

constexpr std::size_t kSampleBytes = 64;
constexpr std::size_t kSampleStride = 64 * kKiB;

// A part of the content, which begins at this word of it.
void fill_part(std::span<std::byte> bytes, std::uint64_t seed, std::size_t first) {
  const std::size_t words = bytes.size() / sizeof(std::uint64_t);
  for (std::size_t i = 0; i < words; ++i) {
    const std::uint64_t word = word_at(seed, first + i);
    std::memcpy(bytes.data() + i * sizeof(word), &word, sizeof(word));
  }
  const std::uint64_t last = word_at(seed, first + words);
  std::memcpy(bytes.data() + words * sizeof(last), &last, bytes.size() % sizeof(last));
}

// Where the first byte is that differs; bytes.size(): none does.
std::size_t first_wrong(std::span<const std::byte> bytes, std::uint64_t seed, std::size_t first) {
  const std::size_t words = bytes.size() / sizeof(std::uint64_t);
  const auto differs = [&](std::size_t index, std::size_t size) {
    const std::uint64_t word = word_at(seed, first + index);
    return std::memcmp(bytes.data() + index * sizeof(word), &word, size) != 0;
  };
  for (std::size_t i = 0; i <= words; ++i) {
    const std::size_t size = i < words ? sizeof(std::uint64_t) : bytes.size() % sizeof(std::uint64_t);
    if (size != 0 && differs(i, size)) return i * sizeof(std::uint64_t);
  }
  return bytes.size();
}

std::unexpected<Error> wrong(std::size_t at, std::size_t size, std::uint64_t tensor, std::uint64_t version) {
  return fail(ErrorCode::kDataLoss,
              fmt::format("wrong bytes at {} of {} of tensor {}, content {}", at, size, tensor, version));
}

}  // namespace

void fill(std::span<std::byte> bytes, std::uint64_t tensor, std::uint64_t version) {
  fill_part(bytes, seed_of(tensor, version), 0);
}

std::size_t first_difference(std::span<const std::byte> bytes, std::uint64_t tensor, std::uint64_t version) {
  return first_wrong(bytes, seed_of(tensor, version), 0);
}

Result<void> check(std::span<const std::byte> bytes, std::uint64_t tensor, std::uint64_t version) {
  const std::size_t at = first_difference(bytes, tensor, version);
  if (at < bytes.size()) return wrong(at, bytes.size(), tensor, version);
  return {};
}

void fill_samples(std::span<std::byte> bytes, std::uint64_t tensor, std::uint64_t version) {
  const std::uint64_t seed = seed_of(tensor, version);
  for (std::size_t at = 0; at < bytes.size(); at += kSampleStride)
    fill_part(bytes.subspan(at, std::min(kSampleBytes, bytes.size() - at)), seed, at / sizeof(seed));
}

Result<void> check_samples(std::span<const std::byte> bytes, std::uint64_t tensor, std::uint64_t version) {
  const std::uint64_t seed = seed_of(tensor, version);
  for (std::size_t at = 0; at < bytes.size(); at += kSampleStride) {
    const auto sample = bytes.subspan(at, std::min(kSampleBytes, bytes.size() - at));
    const std::size_t found = first_wrong(sample, seed, at / sizeof(seed));
    if (found < sample.size()) return wrong(at + found, bytes.size(), tensor, version);
  }
  return {};
}

}  // namespace terrace::bench
