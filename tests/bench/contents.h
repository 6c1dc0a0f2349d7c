// SPDX-License-Identifier: Apache-2.0
// Bytes that are to be told from all others, written and checked at the speed of memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "terrace/error.h"

namespace terrace::bench {

// Fills with what this content of this tensor is: each byte depends on both and on its place. Sizes that are no
// multiple of 8 end with a part of the last word.
void fill(std::span<std::byte> bytes, std::uint64_t tensor, std::uint64_t version);

// The first byte that is not as fill() made it; the size if all are.
std::size_t first_difference(std::span<const std::byte> bytes, std::uint64_t tensor, std::uint64_t version);

// Whether all bytes are as fill() made them; kDataLoss names the first that is not.
Result<void> check(std::span<const std::byte> bytes, std::uint64_t tensor, std::uint64_t version);

// The same of 64 bytes in each 64 KiB, which say what content it is and where it belongs, for whom all bytes take too
// long; what fill() made passes.
void fill_samples(std::span<std::byte> bytes, std::uint64_t tensor, std::uint64_t version);
Result<void> check_samples(std::span<const std::byte> bytes, std::uint64_t tensor, std::uint64_t version);

}  // namespace terrace::bench
