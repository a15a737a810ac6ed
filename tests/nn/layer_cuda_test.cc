// The layer on a GPU, beside the same layer on the CPU. Without a GPU, or without the CUDA operators,
// skipped.
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>

#include "small_layers.h"

namespace gsa::nn::testing {
namespace {

bool built_with_cuda() {
  return c10::Dispatcher::singleton().findSchemaOrThrow("gsa::built_with_cuda", "").typed<bool()>().call();
}

double relative_difference(const Tensor& a, const Tensor& b) {
  const Tensor x = a.detach().cpu().to(torch::kFloat64), y = b.detach().cpu().to(torch::kFloat64);
  return ((x - y).norm() / y.norm()).item<double>();
}

class LayerOnCuda : public ::testing::TestWithParam<NamedConfig> {
 protected:
  void SetUp() override {
    if (!built_with_cuda()) GTEST_SKIP() << "libgsa.so is built without the CUDA operators";
    if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  }
};

struct Step {
  ForwardResult result;
  std::vector<Tensor> gradients;
  Tensor mean_variance;
};

Step step_on(const AttentionConfig& config, const torch::Device& device) {
  torch::manual_seed(5);
  GatedSparseAttention layer(config);
  const Tensor h = torch::randn({2, 150, config.d_model});
  layer->to(device, torch::kBFloat16);
  Step step;
  step.result =
      layer->forward(h.to(device, torch::kBFloat16), {.want_kl = config.sparse, .want_stats = true});
  Tensor loss = step.result.out.to(torch::kFloat32).square().mean();
  if (step.result.kl) loss = loss + *step.result.kl;
  loss.backward();
  for (const Tensor& parameter : layer->parameters()) step.gradients.push_back(parameter.grad());
  if (config.sparse) step.mean_variance = layer->indexer->mean_variance;
  return step;
}

TEST_P(LayerOnCuda, AgreesWithTheCpu) {
  AttentionConfig config = GetParam().config;
  // Keys of nearly equal scores may change places between the backends; with room for all there is no
  // threshold.
  config.budget.base = config.budget.max = 256;
  const Step cpu = step_on(config, torch::kCPU), cuda = step_on(config, torch::kCUDA);
  EXPECT_TRUE(cuda.result.out.is_cuda());
  // Both round to bfloat16 at every step, each in its own order.
  EXPECT_LT(relative_difference(cuda.result.out, cpu.result.out), 0.02);
  if (config.sparse) {
    EXPECT_TRUE(cuda.mean_variance.is_cuda());
    EXPECT_LT(relative_difference(*cuda.result.kl, *cpu.result.kl), 0.02);
    EXPECT_LT(relative_difference(cuda.mean_variance, cpu.mean_variance), 0.02);
  }
  ASSERT_EQ(cuda.gradients.size(), cpu.gradients.size());
  for (std::size_t i = 0; i < cpu.gradients.size(); ++i) {
    ASSERT_EQ(cuda.gradients[i].defined(), cpu.gradients[i].defined()) << i;
    if (cpu.gradients[i].defined()) {
      EXPECT_LT(relative_difference(cuda.gradients[i], cpu.gradients[i]), 0.05) << "parameter " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layer, LayerOnCuda, ::testing::ValuesIn(four_systems()),
                         [](const ::testing::TestParamInfo<NamedConfig>& p) { return p.param.name; });

}  // namespace
}  // namespace gsa::nn::testing
