// SPDX-License-Identifier: Apache-2.0
// A tensor's facts (name, type, shape) on their way into a record of the catalog, and as they are read there: the
// engine keeps no others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "engine/catalog/memory.h"
#include "engine/values/request.h"

namespace terrace::engine {

// Its text is not placed yet.
TensorFacts facts_of(const TensorSpec& spec);
std::vector<std::byte> text_of(const TensorSpec& spec);

// Of a record that damage_of() finds nothing wrong with. Borrowed: until the tensor goes.
std::string_view name_of(const TensorRecord& record);
std::span<const std::int64_t> dimensions_of(const TensorRecord& record);
TensorSpec spec_of(const TensorRecord& record);

}  // namespace terrace::engine
