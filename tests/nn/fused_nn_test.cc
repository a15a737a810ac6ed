// Projections that run as one product, and dense attention by the device's own kernels.
#include <gtest/gtest.h>

#include "gsa/error.h"
#include "nn/dense_attention.h"
#include "nn/joint_linear.h"
#include "nn/torch.h"
#include "small_models.h"
#include "torch/ops.h"

namespace gsa::nn::testing {
namespace {

TEST(JointLinear, IsTheProjectionsSideBySide) {
  torch::manual_seed(2);
  const auto leaf = [](at::IntArrayRef shape) {
    return torch::randn(shape, torch::kFloat64).requires_grad_();
  };
  const Tensor x = leaf({13, 6}), a = leaf({4, 6}), b = leaf({3, 6});
  const Tensor direction = torch::randn({13, 7}, torch::kFloat64);
  const Tensor apart = torch::cat({torch::linear(x, a), torch::linear(x, b)}, 1);
  const auto expected = torch::autograd::grad({apart}, {x, a, b}, {direction});
  for (const bool laid_out : {false, true}) {
    if (laid_out) lay_side_by_side({a, b});
    const Tensor joint = joint_linear(x, {a, b});
    EXPECT_LT(max_error(joint, apart), 1e-13);
    const auto got = torch::autograd::grad({joint}, {x, a, b}, {direction});
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_LT(max_error(got[i], expected[i]), 1e-13) << i;
  }
  EXPECT_TRUE(a.is_alias_of(b));
  EXPECT_EQ(b.storage_offset(), a.numel());
}

TEST(JointLinear, AFrozenWeightGetsNoGradient) {
  torch::manual_seed(2);
  const Tensor x = torch::randn({5, 6}, torch::kFloat64);
  const Tensor a = torch::randn({4, 6}, torch::kFloat64).requires_grad_(),
               b = torch::randn({3, 6}, torch::kFloat64);
  joint_linear(x, {a, b}).sum().backward();
  EXPECT_TRUE(a.grad().defined());
  EXPECT_FALSE(b.grad().defined());
}

// For one release the product of few rows answers to its old name, too.
TEST(SkinnyLinear, AnswersToItsOldName) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  torch::manual_seed(2);
  const ops::FewLinearInputs in = {.x = torch::randn({3, 32}), .weight = torch::randn({5, 32})};
  EXPECT_TRUE(torch::equal(ops::few_linear(in), ops::skinny_linear(in)));
  EXPECT_FALSE(ops::few_linear_serves(torch::kCPU, torch::kBFloat16, 3, 32, false));
#pragma GCC diagnostic pop
}

// Values, names and what is learned do not depend on where weights lie.
TEST(Model, WeightsLaidOutTogetherAreTheSameModel) {
  Model model = make_model(small_model(small(AttentionConfig::gsa())));
  const Tensor tokens = random_tokens({2, 30}), targets = next_tokens(tokens);
  const auto run = [&] {
    model->zero_grad();
    const ModelLoss loss = model->loss(tokens, targets, {.want_kl = true});
    (loss.sum + total(loss.kl)).backward();
    return std::make_pair(loss.sum.detach().clone(), gradients(model));
  };
  model->eval();  // so that the running mean of the variance stays
  const auto before = run();
  std::vector<std::string> names;
  for (const auto& item : model->named_parameters()) names.push_back(item.key());
  model->lay_out_weights();
  EXPECT_EQ(model->named_parameters().keys(), names);
  const auto& attention = model->model->layers[0]->self_attn;
  EXPECT_TRUE(attention->q_proj->weight.is_alias_of(attention->v_proj->weight));
  const auto after = run();
  EXPECT_TRUE(torch::equal(before.first, after.first));
  for (std::size_t i = 0; i < names.size(); ++i) {
    const Tensor &a = before.second[i].second, &b = after.second[i].second;
    ASSERT_EQ(a.defined(), b.defined()) << names[i];
    if (!a.defined()) continue;
    EXPECT_TRUE(torch::equal(a, b)) << names[i];
  }
}

// ---- on a GPU

class OnCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!ops::built_with_cuda()) GTEST_SKIP() << "libgsa.so is built without the CUDA operators";
    if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  }
};

struct Attended {
  Tensor out, lse;
  std::vector<Tensor> gradients;
};

// Three sequences of this length, 8/2 heads of `size`; by gsa::attend where group says nothing of lengths.
Attended attend_on_cuda(std::int64_t length, std::int64_t size, bool with_length, bool deterministic) {
  torch::manual_seed(4);
  const auto leaf = [&](std::int64_t heads) {
    return torch::randn({3 * length, heads, size}).to(torch::kCUDA, torch::kBFloat16).requires_grad_();
  };
  const Tensor q = leaf(8), k = leaf(2), v = leaf(2);
  const SequenceGroup group{.sparse = false,
                            .starts = torch::arange(0, 3 * length + 1, length, torch::kInt64),
                            .rows = {},
                            .common_length = with_length ? length : 0};
  const auto [out, lse] = dense_attend(q, k, v, group, deterministic);
  const Tensor direction = torch::randn({3 * length, 8, size}).to(out.options());
  return {out.detach(), lse.detach(), torch::autograd::grad({out}, {q, k, v}, {direction})};
}

double relative_error(const Tensor& a, const Tensor& b) {
  const Tensor x = a.to(torch::kFloat64), y = b.to(torch::kFloat64);
  return ((x - y).norm() / y.norm()).item<double>();
}

TEST_F(OnCuda, DenseAttentionIsTheSameByEitherKernel) {
  for (const std::int64_t size : {64, 128}) {
    for (const std::int64_t length : {128, 384}) {
      SCOPED_TRACE(concat("length ", length, ", head size ", size));
      const Attended ours = attend_on_cuda(length, size, false, true);
      for (const bool deterministic : {true, false}) {
        const Attended other = attend_on_cuda(length, size, true, deterministic);
        EXPECT_LT(relative_error(other.out, ours.out), 0.01);
        EXPECT_LT(max_error(other.lse, ours.lse), 1e-3);
        for (std::size_t i = 0; i < 3; ++i) {
          EXPECT_LT(relative_error(other.gradients[i], ours.gradients[i]), 0.02) << i;
        }
      }
    }
  }
}

TEST_F(OnCuda, ReproducibleGradientsAreTheSameBits) {
  const Attended once = attend_on_cuda(1024, 64, true, true);
  for (int i = 0; i < 10; ++i) {
    const Attended again = attend_on_cuda(1024, 64, true, true);
    EXPECT_TRUE(torch::equal(again.out, once.out));
    for (std::size_t g = 0; g < 3; ++g) EXPECT_TRUE(torch::equal(again.gradients[g], once.gradients[g])) << g;
  }
}

class ModelOnCuda : public ::testing::TestWithParam<NamedConfig> {};

// A whole model's loss and gradients in bfloat16, beside float32: no further from it than bfloat16 on the CPU
// is, where the operators are others. (Three layers with weights as small models of tests have them lose
// much.)
TEST_P(ModelOnCuda, AgreesWithTheCpu) {
  if (!ops::built_with_cuda()) GTEST_SKIP() << "libgsa.so is built without the CUDA operators";
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  AttentionConfig attention = GetParam().config;
  attention.d_model = 64;
  attention.head_size = 32;
  attention.budget.base = attention.budget.max = 256;  // room for all keys: no threshold to disagree about
  const ModelConfig config = small_model(attention);
  const Tensor tokens = random_tokens({2, 128}), targets = next_tokens(tokens);
  const auto run = [&](torch::Device device, torch::Dtype dtype) {
    Model model = make_model(config, torch::kFloat32);
    model->to(device);
    model->to(dtype);
    model->lay_out_weights();
    const ModelLoss loss = model->loss(tokens.to(device), targets.to(device), {.want_kl = attention.sparse});
    (loss.sum / loss.count + total(loss.kl).to(device)).backward();
    return std::make_pair((loss.sum / loss.count).item<double>(), gradients(model));
  };
  const auto exact = run(torch::kCPU, torch::kFloat32);
  const auto cpu = run(torch::kCPU, torch::kBFloat16), cuda = run(torch::kCUDA, torch::kBFloat16);
  EXPECT_NEAR(cuda.first, exact.first, 0.02 * exact.first);
  for (std::size_t i = 0; i < exact.second.size(); ++i) {
    const auto& [name, expected] = exact.second[i];
    const Tensor& got = cuda.second[i].second;
    ASSERT_EQ(got.defined(), expected.defined()) << name;
    if (!got.defined()) continue;
    const double usual = relative_error(cpu.second[i].second, expected);
    EXPECT_LT(relative_error(got.cpu(), expected), 2 * usual + 0.01) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Fused, ModelOnCuda, ::testing::ValuesIn(four_systems()), name_of_case);

}  // namespace
}  // namespace gsa::nn::testing
