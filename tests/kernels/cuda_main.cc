// Entry of the tests that need a CUDA device. Without one they say so and count as skipped.
#include <gtest/gtest.h>

#include <cstdio>

#include "cuda_call.h"

int main(int argc, char** argv) {
  constexpr int kSkipped = 77;
  ::testing::InitGoogleTest(&argc, argv);
  if (!::testing::GTEST_FLAG(list_tests) && !gsa::testing::cuda_present()) {
    std::printf("gsa_cuda_tests: no CUDA device here, nothing was tested\n");
    return kSkipped;
  }
  return RUN_ALL_TESTS();
}
