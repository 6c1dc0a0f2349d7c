// SPDX-License-Identifier: Apache-2.0
// Shows what a GPU that fails costs: its own tier, which says so with the driver's call and code, and nothing else,
// whether it fails before the daemon starts, while it starts, or is none of those that are configured.
#include <cstdlib>

#include "gpu/cuda_end.h"

namespace terrace::e2e {
namespace {

using fake_cuda::Call;
using fake_cuda::set_fault;

constexpr const char* kRetainFailed = "cuDevicePrimaryCtxRetain: CUDA_ERROR_ECC_UNCORRECTABLE (214)";

class CudaFailures : public CudaEnd {
 protected:
  static TerracedOptions on(const std::string& device) {
    return {.device_mib = 8, .memory_mib = 32, .block_mib = 64, .device = device};
  }
  static std::string failure_of(const Terraced& daemon, std::size_t tier) {
    return daemon.status()["tiers"][tier].value("failure", "");
  }
  static bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
};

TEST_F(CudaFailures, OneThatIsSickAtTheStartCostsTheOthersNothing) {
  control.device_count = 3;
  control.lost[1] = cuda::kEccUncorrectable;
  const Terraced daemon(on("cuda:all"));
  EXPECT_EQ(failure_of(daemon, 0), "");
  EXPECT_TRUE(has(failure_of(daemon, 1), kRetainFailed)) << failure_of(daemon, 1);
  EXPECT_EQ(failure_of(daemon, 2), "");
  EXPECT_TRUE(has(daemon.log(), "device:1 does not serve: cuda:1 (Fake GPU 1): " + std::string(kRetainFailed)))
      << daemon.log();
  Client client = daemon.connect();
  for (const std::uint32_t gpu : {0U, 2U}) {
    const Tensor tensor = make(client, "on " + std::to_string(gpu));
    const Result<Lease> written = lease(client, tensor, Mode::kOverwrite, Place::device(gpu));
    ASSERT_TRUE(written) << written.error().message;
    EXPECT_EQ(written->cuda_device(), static_cast<int>(gpu)) << "places keep their numbers";
  }
  const Tensor tensor = make(client, "on 1");
  const Result<Lease> refused = lease(client, tensor, Mode::kOverwrite, Place::device(1));
  ASSERT_FALSE(refused);
  EXPECT_TRUE(has(refused.error().message, kRetainFailed)) << refused.error().message;
  EXPECT_TRUE(daemon.serves_on());
}

TEST_F(CudaFailures, AutoDoesNotPretendOne) {
  control.lost[0] = cuda::kEccUncorrectable;
  const Terraced daemon(on("auto"));
  EXPECT_TRUE(has(failure_of(daemon, 0), kRetainFailed)) << failure_of(daemon, 0);
  EXPECT_TRUE(daemon.serves_on());
  Client client = daemon.connect();
  EXPECT_FALSE(lease(client, make(client), Mode::kOverwrite, Place::device(0)));
}

TEST_F(CudaFailures, ADriverThatIsNotReadyIsNoMissingOne) {
  set_fault(control, Call::kInit, cuda::kSystemNotReady, 1000);
  const Terraced daemon(on("auto"));
  EXPECT_TRUE(has(failure_of(daemon, 0), "cuInit: CUDA error (802)")) << failure_of(daemon, 0);
  EXPECT_TRUE(daemon.serves_on());
}

TEST_F(CudaFailures, OneThatIsNotConfiguredDoesNotMatter) {
  control.device_count = 2;
  control.lost[0] = cuda::kEccUncorrectable;
  const Terraced daemon(on("cuda:1"));
  EXPECT_EQ(failure_of(daemon, 0), "");
  EXPECT_FALSE(has(daemon.log(), "cuda:0")) << daemon.log();
  Process trainer([&] {
    ::setenv("CUDA_VISIBLE_DEVICES", "1", 1);
    Client client = daemon.connect();
    return lease(client, make(client), Mode::kOverwrite) ? 0 : 1;
  });
  EXPECT_EQ(trainer.wait(), 0);
}

TEST_F(CudaFailures, OneThatFailsOnlyAsItStartsIsATierThatSaysSo) {
  for (const Call call : {Call::kRetain, Call::kStreamCreate, Call::kHostRegister}) {
    SCOPED_TRACE(static_cast<int>(call));
    set_fault(control, call, cuda::kOperatingSystem, 1, call == Call::kRetain ? 1 : 0);  // the first asks what is there
    const Terraced daemon(on("cuda:0"));
    EXPECT_TRUE(has(failure_of(daemon, 0), "CUDA_ERROR_OPERATING_SYSTEM (304)")) << failure_of(daemon, 0);
    EXPECT_TRUE(daemon.serves_on());
  }
}

}  // namespace
}  // namespace terrace::e2e
