// SPDX-License-Identifier: Apache-2.0
#include "engine/facts.h"

#include <algorithm>
#include <span>
#include <string_view>

#include "base/check.h"

namespace terrace::engine {

PackedFacts packed(const Tensor& tensor) {
  PackedFacts to;
  to.facts.bytes = tensor.bytes;
  to.facts.dtype = tensor.dtype;
  to.facts.rank = tensor.rank;
  to.facts.dimension_count = static_cast<std::uint8_t>(tensor.dimensions.size());
  to.facts.name_bytes = static_cast<std::uint16_t>(tensor.name.size());
  const std::span numbers(tensor.dimensions);
  const std::size_t first_numbers = std::min(numbers.size(), TensorFacts::kDimensionsMax);
  TERRACE_CHECK(numbers.size() <= 2 * kRankMax && tensor.name.size() <= kNameBytesMax);
  std::ranges::copy(numbers.first(first_numbers), to.facts.dimensions.begin());
  std::ranges::copy(numbers.subspan(first_numbers), to.rest.dimensions.begin());
  const std::string_view name = tensor.name;
  const std::size_t first_bytes = std::min(name.size(), TensorFacts::kNameBytesMax);
  std::ranges::copy(name.substr(0, first_bytes), to.facts.name.begin());
  std::ranges::copy(name.substr(first_bytes), to.rest.name.begin());
  return to;
}

std::string name_of(const TensorRecord& record) {
  std::string name(record.facts.name.begin(), record.facts.name.end());
  name.append(record.facts_rest.name.begin(), record.facts_rest.name.end());
  name.resize(record.facts.name_bytes);
  return name;
}

std::vector<std::int64_t> dimensions_of(const TensorRecord& record) {
  std::vector<std::int64_t> dimensions(record.facts.dimensions.begin(), record.facts.dimensions.end());
  dimensions.insert(dimensions.end(), record.facts_rest.dimensions.begin(), record.facts_rest.dimensions.end());
  dimensions.resize(record.facts.dimension_count);
  return dimensions;
}

}  // namespace terrace::engine
