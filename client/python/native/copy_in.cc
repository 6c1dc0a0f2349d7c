// SPDX-License-Identifier: Apache-2.0
#include "copy_in.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace terrace::python {

#if defined(__x86_64__)

namespace {

constexpr std::size_t kLineBytes = 64;

// One line of the caches; `to` is aligned to it.
void stream_line(std::byte* to, const std::byte* from) {
  for (std::size_t at = 0; at < kLineBytes; at += sizeof(__m128i)) {
    const __m128i part = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at));
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + at), part);
  }
}

}  // namespace

void copy_in(std::byte* to, const std::byte* from, std::size_t size) {
  const std::size_t before = std::min(size, (-reinterpret_cast<std::uintptr_t>(to)) % kLineBytes);
  std::memcpy(to, from, before);
  std::size_t at = before;
  for (; size - at >= kLineBytes; at += kLineBytes) stream_line(to + at, from + at);
  std::memcpy(to + at, from + at, size - at);
  _mm_sfence();
}

#else

void copy_in(std::byte* to, const std::byte* from, std::size_t size) { std::memcpy(to, from, size); }

#endif

}  // namespace terrace::python
