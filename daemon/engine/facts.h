// SPDX-License-Identifier: Apache-2.0
// A tensor's facts (name, type, shape) on their way into a record of the catalog and back.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/catalog_memory.h"
#include "engine/tensor.h"

namespace terrace::engine {

struct PackedFacts {
  TensorFacts facts;
  TensorFactsRest rest;
};

PackedFacts packed(const Tensor& tensor);

// Of a record that damage_of() finds nothing wrong with.
std::string name_of(const TensorRecord& record);
std::vector<std::int64_t> dimensions_of(const TensorRecord& record);

}  // namespace terrace::engine
