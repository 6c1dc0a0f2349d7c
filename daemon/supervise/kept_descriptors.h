// SPDX-License-Identifier: Apache-2.0
// What the daemon gave to be kept: descriptors by name, bounded in number and in what their names take.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>

#include "base/fd.h"

namespace terrace::supervise {

class KeptDescriptors {
 public:
  // At most `capacity` descriptors, whose names fit into one start's environment (service::kAllNamesBytesMax).
  explicit KeptDescriptors(std::size_t capacity) : capacity_(capacity) {}

  // False, and `descriptor` is closed: it is full, or the name is taken (names must be unique to come back). `name` is
  // valid (service::check_descriptor_name).
  bool add(std::string name, Fd descriptor);
  // Closes it; false: there is none of that name.
  bool remove(std::string_view name);

  std::size_t size() const { return by_name_.size(); }
  std::size_t capacity() const { return capacity_; }
  const std::map<std::string, Fd, std::less<>>& by_name() const { return by_name_; }

 private:
  std::size_t capacity_;
  std::size_t names_bytes_ = 0;  // with one more a name
  std::map<std::string, Fd, std::less<>> by_name_;
};

}  // namespace terrace::supervise
