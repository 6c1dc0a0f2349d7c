// SPDX-License-Identifier: Apache-2.0
// A folder that stands in for the machine's /proc and /sys.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace terrace::topology {

// Made under the temporary folder, removed with everything in it when the owner goes.
class FakeRoot {
 public:
  FakeRoot() {
    std::string name = (std::filesystem::temp_directory_path() / "terrace-root-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    path_ = name;
  }
  FakeRoot(const FakeRoot&) = delete;
  FakeRoot& operator=(const FakeRoot&) = delete;
  ~FakeRoot() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  void write(const std::string& name, const std::string& text) {
    const std::filesystem::path file = path_ + name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
    ASSERT_TRUE(std::filesystem::is_regular_file(file));
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace terrace::topology
