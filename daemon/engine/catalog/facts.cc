// SPDX-License-Identifier: Apache-2.0
#include "engine/catalog/facts.h"

#include <algorithm>

#include "base/check.h"

namespace terrace::engine {

TensorFacts facts_of(const TensorSpec& spec) {
  TERRACE_CHECK(spec.shape.size() <= kRankMax && spec.strides.size() <= kRankMax && spec.name.size() <= kNameBytesMax);
  return {.bytes = spec.bytes,
          .dtype = static_cast<std::uint32_t>(spec.dtype),
          .rank = static_cast<std::uint8_t>(spec.shape.size()),
          .dimension_count = static_cast<std::uint8_t>(spec.shape.size() + spec.strides.size()),
          .name_bytes = static_cast<std::uint16_t>(spec.name.size())};
}

std::vector<std::byte> text_of(const TensorSpec& spec) {
  std::vector<std::byte> text(facts_of(spec).text_bytes());
  auto at = text.begin();
  for (const auto part : {std::as_bytes(std::span(spec.shape)), std::as_bytes(std::span(spec.strides)),
                          std::as_bytes(std::span(spec.name))})
    at = std::ranges::copy(part, at).out;
  return text;
}

std::string_view name_of(const TensorRecord& record) {
  const auto name = record.text.subspan(record.facts.dimension_count * sizeof(std::int64_t), record.facts.name_bytes);
  return {reinterpret_cast<const char*>(name.data()), name.size()};
}

std::span<const std::int64_t> dimensions_of(const TensorRecord& record) {
  return {reinterpret_cast<const std::int64_t*>(record.text.data()), record.facts.dimension_count};
}

TensorSpec spec_of(const TensorRecord& record) {
  const auto dimensions = dimensions_of(record);
  const auto shape = dimensions.first(record.facts.rank);
  const auto strides = dimensions.subspan(record.facts.rank);
  return {.name = std::string(name_of(record)),
          .bytes = record.facts.bytes,
          .dtype = static_cast<DType>(record.facts.dtype),
          .shape = {shape.begin(), shape.end()},
          .strides = {strides.begin(), strides.end()}};
}

}  // namespace terrace::engine
