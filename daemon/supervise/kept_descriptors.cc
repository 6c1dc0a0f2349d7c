// SPDX-License-Identifier: Apache-2.0
#include "supervise/kept_descriptors.h"

#include <utility>

#include "service/descriptor_store.h"

namespace terrace::supervise {

bool KeptDescriptors::add(std::string name, Fd descriptor) {
  const std::size_t bytes = name.size() + 1;
  if (by_name_.size() >= capacity_ || names_bytes_ + bytes > service::kAllNamesBytesMax) return false;
  if (!by_name_.try_emplace(std::move(name), std::move(descriptor)).second) return false;
  names_bytes_ += bytes;
  return true;
}

bool KeptDescriptors::remove(std::string_view name) {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return false;
  names_bytes_ -= found->first.size() + 1;
  by_name_.erase(found);
  return true;
}

}  // namespace terrace::supervise
