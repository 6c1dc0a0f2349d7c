// SPDX-License-Identifier: Apache-2.0
// Shows that the driver is found at run time, that what it refuses is named by call, code and number, and that there
// being none is an error and no crash.
#include "gpu/on_fake.h"

namespace terrace::fake_cuda {
namespace {

class Driver : public OnFake {};

TEST_F(Driver, IsLoadedOncePerPath) {
  EXPECT_EQ(&api(), *cuda::load(FAKE_CUDA));
  EXPECT_EQ(cuda::loaded(FAKE_CUDA), &api());
  int count = 0;
  ASSERT_TRUE(api().device_count(&count));
  EXPECT_EQ(count, 1);
  cuda::Context context = nullptr;
  ASSERT_TRUE(api().primary_retain(&context, 0));
  EXPECT_TRUE(api().primary_release(0));
}

TEST_F(Driver, NamesTheLibraryThatIsNotThere) {
  api();
  const auto none = cuda::load("/nowhere/libcuda.so.1");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::kFailedPrecondition);
  EXPECT_NE(none.error().message.find("/nowhere/libcuda.so.1"), std::string::npos) << none.error().message;
  EXPECT_EQ(cuda::loaded("/nowhere/libcuda.so.1"), nullptr);
  // A library that is no driver lacks an entry point, and says which.
  const auto other = cuda::load("libm.so.6");
  ASSERT_FALSE(other);
  EXPECT_NE(other.error().message.find("cuInit"), std::string::npos) << other.error().message;
  cuda::Context context = nullptr;
  EXPECT_TRUE(api().primary_retain(&context, 0));
  EXPECT_TRUE(api().primary_release(0));
}

TEST_F(Driver, ErrorsNameCallCodeAndNumber) {
  set_fault(control, Call::kHostRegister, cuda::kOutOfMemory);
  char byte = 0;
  const auto refused = api().host_register(&byte, 1, 0);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message, "cuMemHostRegister: CUDA_ERROR_OUT_OF_MEMORY (2)");
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(cuda::error_of("cuMemCreate", cuda::kEccUncorrectable).code, ErrorCode::kDataLoss);
  EXPECT_EQ(cuda::error_of("cuMemCreate", cuda::kLaunchFailed).code, ErrorCode::kDataLoss);
  EXPECT_EQ(cuda::error_of("cuMemCreate", cuda::kUnknown).code, ErrorCode::kUnavailable);
  EXPECT_EQ(cuda::error_of("cuMemCreate", cuda::kNoDevice).code, ErrorCode::kFailedPrecondition);
  EXPECT_EQ(cuda::error_of("cuMemCreate", cuda::kInvalidValue).code, ErrorCode::kInternal);
  EXPECT_EQ(cuda::error_of("cuInit", 12345).message, "cuInit: CUDA error (12345)");
}

TEST_F(Driver, CurrentMakesAContextCurrentForAsLongAsItLives) {
  cuda::Context context = nullptr;
  ASSERT_TRUE(api().primary_retain(&context, 0));
  std::size_t free = 0;
  std::size_t total = 0;
  EXPECT_EQ(api().memory_info.status(&free, &total), cuda::kInvalidContext);
  {
    const cuda::Current current(api(), context);
    ASSERT_TRUE(current.result());
    EXPECT_TRUE(api().memory_info(&free, &total));
    EXPECT_EQ(total, kDeviceBytes);
  }
  EXPECT_EQ(api().memory_info.status(&free, &total), cuda::kInvalidContext);
  EXPECT_TRUE(api().primary_release(0));
}

}  // namespace
}  // namespace terrace::fake_cuda
