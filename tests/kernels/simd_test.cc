// Which instruction set is in use, and that its products are taken.
#include "kernels/common/simd.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "gsa/error.h"
#include "problems.h"

namespace gsa::testing {
namespace {

class Simd : public ::testing::Test {
 protected:
  void TearDown() override { use_simd(simd_available().front()); }
};

TEST_F(Simd, TheBestIsInUseUntilOneIsChosen) {
  EXPECT_EQ(simd_in_use(), simd_available().front());
  for (const std::string& name : simd_available()) {
    use_simd(name);
    EXPECT_EQ(simd_in_use(), name);
    EXPECT_EQ(bf16_products(), name == "AVX3_BF16");
  }
  EXPECT_THROW(use_simd("AVX9"), Error);
}

// On a processor that has them: other bits than with products in float, for bfloat16 alone.
TEST_F(Simd, ProductsOfBfloat16AreTheProcessorsOwn) {
  const std::vector<std::string> names = simd_available();
  if (std::find(names.begin(), names.end(), "AVX3_BF16") == names.end()) {
    GTEST_SKIP() << "this processor has no AVX512-BF16";
  }
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    SCOPED_TRACE(name_of(type));
    AttendProblem p(type, {{150, 900, 700}}, 8, 2, 128, 0.2, Layout::tokens_first, 1);
    use_simd("AVX3_BF16");
    const Tensor own = run_attend(p, serial()).out;
    use_simd("AVX3");
    const Tensor in_float = run_attend(p, serial()).out;
    EXPECT_EQ(static_cast<bool>(same_bits(own, in_float)), type != DType::bf16);
  }
}

}  // namespace
}  // namespace gsa::testing
