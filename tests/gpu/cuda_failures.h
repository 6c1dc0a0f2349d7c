// SPDX-License-Identifier: Apache-2.0
// What tests of GPUs that fail begin with: a daemon's word on each, and a trainer that has tensors everywhere.
#pragma once

#include <csignal>
#include <fstream>
#include <iterator>
#include <map>
#include <string>

#include "gpu/cuda_end.h"

namespace terrace::e2e {

inline constexpr const char* kRetainFailed = "cuDevicePrimaryCtxRetain: CUDA_ERROR_ECC_UNCORRECTABLE (214)";

class CudaFailures : public CudaEnd {
 protected:
  static TerracedOptions on(const std::string& device) {
    return {.device_mib = 8, .memory_mib = 32, .block_mib = 64, .device = device, .write_back = "late"};
  }
  static std::string failure_of(const Terraced& daemon, std::size_t tier) {
    return daemon.status()["tiers"][tier].value("failure", "");
  }
  // The first `from` in the next daemon's configuration is `to`.
  static void configure(const Terraced& daemon, const std::string& from, const std::string& to) {
    std::ifstream written(daemon.configuration_file());
    std::string text{std::istreambuf_iterator<char>(written), {}};
    ASSERT_NE(text.find(from), std::string::npos) << text;
    std::ofstream(daemon.configuration_file()) << text.replace(text.find(from), from.size(), to);
  }
  // Has the next daemon give up what it cannot take back.
  static void give_up(const Terraced& daemon) {
    const std::string key = "write_back = \"late\"\n";
    configure(daemon, key, key + "take_back = \"give_up\"\n");
  }
  static bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
};

class CudaRestarts : public CudaFailures {
 protected:
  CudaRestarts() {
    write_to("first");          // in the first segment
    write_to("beside");         // too
    write_to("held");           // too
    write_to("copied");         // too, and on the block tier
    write_to("far", 3 * kMiB);  // in the second, and beyond it
    EXPECT_TRUE(client_.swap_out({&tensors_.at("copied"), 1}));
    EXPECT_TRUE(lease(client_, tensors_.at("copied"), Mode::kRead));
    Result<Lease> written =
        lease(client_, tensors_.emplace("host", make(client_, "host")).first->second, Mode::kOverwrite, Place::host());
    EXPECT_TRUE(written) << written.error().message;
    fill(written->writable_bytes(), 1, 4);
  }

  void write_to(const std::string& name, std::uint64_t bytes = kSmall) {
    if (!tensors_.contains(name)) tensors_.emplace(name, make(client_, name, bytes));
    const Result<Lease> written = lease(client_, tensors_.at(name), Mode::kOverwrite);
    ASSERT_TRUE(written) << written.error().message;
    write(*written, 4);
  }
  void restart() {
    const std::uint64_t before = client_.reconnects();
    ASSERT_TRUE(daemon_.replace(SIGKILL));
    ASSERT_TRUE(eventually([&] { return client_.reconnects() > before; })) << daemon_.log();
  }
  // Why the tensor cannot be read on the host; empty: it is as it was written.
  std::string trouble(const std::string& name) {
    const Result<Lease> read = lease(client_, tensors_.at(name), Mode::kRead, Place::host());
    if (!read) return read.error().message;
    return first_difference(read->bytes(), 1, 4) == read->bytes().size() ? "" : "it has other bytes";
  }

  static constexpr std::uint64_t kSmall = kMiB / 2;  // four of them fill a segment
  const Terraced daemon_{[] {
    TerracedOptions options = on("cuda:0");
    options.supervised = true;
    return options;
  }()};
  Client client_ = daemon_.connect();
  std::map<std::string, Tensor> tensors_;
};

}  // namespace terrace::e2e
