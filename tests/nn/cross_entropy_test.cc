#include "nn/cross_entropy.h"

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>

#include <string>

#include "gsa/error.h"
#include "nn/torch.h"

namespace gsa::nn {
namespace {

using at::Tensor;

struct Problem {
  Tensor hidden, weight, targets;
};

Problem make_problem(std::int64_t tokens, std::int64_t size, std::int64_t vocabulary, torch::Dtype dtype) {
  torch::manual_seed(5);
  Problem p;
  p.hidden = torch::randn({tokens, size}, torch::kFloat64).to(dtype).requires_grad_();
  p.weight = (torch::randn({vocabulary, size}, torch::kFloat64) * 0.3).to(dtype).requires_grad_();
  p.targets = torch::randint(0, vocabulary, {tokens}, torch::kInt64);
  p.targets.slice(0, 0, tokens, 5).fill_(kIgnoredTarget);
  return p;
}

Tensor plain_loss(const Problem& p) {
  const auto options =
      torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum).ignore_index(kIgnoredTarget);
  return torch::nn::functional::cross_entropy(p.hidden.mm(p.weight.t()), p.targets, options);
}

double error(const Tensor& a, const Tensor& b) {
  return (a.to(torch::kFloat64) - b.to(torch::kFloat64)).abs().max().item<double>();
}

// Vocabularies below and above the size at which logits are cut into chunks (64 MB on the CPU).
class CrossEntropy : public ::testing::TestWithParam<std::int64_t> {};

INSTANTIATE_TEST_SUITE_P(Vocabulary, CrossEntropy, ::testing::Values(7, 101, 1'500'003),
                         [](const auto& test) { return concat("V", test.param); });

TEST_P(CrossEntropy, IsTorchsInValueAndGradients) {
  const std::int64_t vocabulary = GetParam();
  Problem p = make_problem(vocabulary > 1000 ? 37 : 403, 5, vocabulary, torch::kFloat64);
  const Tensor ours = cross_entropy_sum(p.hidden, p.weight, p.targets);
  EXPECT_EQ(ours.scalar_type(), torch::kFloat64);
  (ours * 0.7).backward();
  const Tensor dh = p.hidden.grad().clone(), dw = p.weight.grad().clone();
  p.hidden.mutable_grad() = p.weight.mutable_grad() = Tensor();
  const Tensor theirs = plain_loss(p);
  (theirs * 0.7).backward();
  EXPECT_NEAR(ours.item<double>(), theirs.item<double>(), 1e-10 * theirs.item<double>());
  EXPECT_LT(error(dh, p.hidden.grad()), 1e-12);
  EXPECT_LT(error(dw, p.weight.grad()), 1e-12);
  torch::NoGradGuard no_grad;
  EXPECT_TRUE(torch::equal(cross_entropy_sum(p.hidden, p.weight, p.targets), ours));
}

// At most twice (gradients three times) the error that torch makes with logits in the same type.
TEST(CrossEntropyTypes, ErrorIsThatOfTheType) {
  for (const auto dtype : {torch::kFloat32, torch::kBFloat16, torch::kFloat16}) {
    SCOPED_TRACE(torch::toString(dtype));
    Problem low = make_problem(300, 48, 211, dtype);
    Problem exact;
    exact.hidden = low.hidden.detach().to(torch::kFloat64).requires_grad_();
    exact.weight = low.weight.detach().to(torch::kFloat64).requires_grad_();
    exact.targets = low.targets;
    plain_loss(exact).backward();
    const double loss = plain_loss(exact).item<double>();

    const Tensor theirs = plain_loss(low);
    theirs.backward();
    const Tensor their_dh = low.hidden.grad().clone(), their_dw = low.weight.grad().clone();
    low.hidden.mutable_grad() = low.weight.mutable_grad() = Tensor();
    const Tensor ours = cross_entropy_sum(low.hidden, low.weight, low.targets);
    EXPECT_EQ(ours.scalar_type(), torch::kFloat32);
    ours.backward();
    EXPECT_EQ(low.hidden.grad().scalar_type(), dtype);
    EXPECT_EQ(low.weight.grad().scalar_type(), dtype);
    EXPECT_LE(std::abs(ours.item<double>() - loss), 2 * std::abs(theirs.item<double>() - loss) + 1e-7 * loss);
    EXPECT_LE(error(low.hidden.grad(), exact.hidden.grad()), 3 * error(their_dh, exact.hidden.grad()));
    EXPECT_LE(error(low.weight.grad(), exact.weight.grad()), 3 * error(their_dw, exact.weight.grad()));
  }
}

TEST(CrossEntropyEdges, NothingCountsOrNothingIsThere) {
  Problem p = make_problem(6, 4, 9, torch::kFloat32);
  p.targets.fill_(kIgnoredTarget);
  const Tensor none = cross_entropy_sum(p.hidden, p.weight, p.targets);
  none.backward();
  EXPECT_EQ(none.item<double>(), 0);
  EXPECT_EQ(p.hidden.grad().abs().max().item<double>(), 0);
  Problem empty = make_problem(0, 4, 9, torch::kFloat32);
  EXPECT_EQ(cross_entropy_sum(empty.hidden, empty.weight, empty.targets).item<double>(), 0);
}

TEST(CrossEntropyEdges, OnlyWhatLearnsGetsAGradient) {
  Problem p = make_problem(20, 4, 9, torch::kFloat32);
  p.hidden = p.hidden.detach();
  cross_entropy_sum(p.hidden, p.weight, p.targets).backward();
  EXPECT_TRUE(p.weight.grad().defined());
  Problem frozen = make_problem(20, 4, 9, torch::kFloat32);
  frozen.weight = frozen.weight.detach();
  cross_entropy_sum(frozen.hidden, frozen.weight, frozen.targets).backward();
  EXPECT_TRUE(frozen.hidden.grad().defined());
}

TEST(CrossEntropyEdges, LargeLogitsAreExact) {
  // exp(1000) is infinite in any type: the shift by the largest logit is what saves it.
  const Tensor hidden = torch::tensor({{1000.0f}}), weight = torch::tensor({{1.0f}, {-1.0f}});
  const Tensor sum = cross_entropy_sum(hidden, weight, torch::tensor({1}, torch::kInt64));
  EXPECT_EQ(sum.item<double>(), 2000);
}

// Weights in float32, products in bfloat16: what a trainer with autocast does. Gradients have the weights'
// type.
TEST(CrossEntropyTypes, RunsUnderAutocast) {
  Problem p = make_problem(100, 16, 31, torch::kFloat32);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const Tensor sum = cross_entropy_sum(p.hidden, p.weight, p.targets);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  sum.backward();
  EXPECT_EQ(p.weight.grad().scalar_type(), torch::kFloat32);
  EXPECT_NEAR(sum.item<double>() / plain_loss(p).item<double>(), 1, 0.01);
}

void expect_loss_error(const Problem& p, const std::string& argument, const std::string& got) {
  try {
    cross_entropy_sum(p.hidden, p.weight, p.targets);
    FAIL() << "accepted";
  } catch (const Error& e) {
    const std::string text = e.what();
    EXPECT_NE(text.find("argument '" + argument + "'"), std::string::npos) << text;
    EXPECT_NE(text.find("got " + got), std::string::npos) << text;
  }
}

TEST(CrossEntropyErrors, NameTheArgument) {
  Problem p = make_problem(8, 4, 9, torch::kFloat32);
  Problem q = p;
  q.targets = p.targets.clone();
  q.targets[3] = 9;
  expect_loss_error(q, "targets", "9");
  q.targets[3] = -1;
  expect_loss_error(q, "targets", "-1");
  q.targets = p.targets.to(torch::kInt32);
  expect_loss_error(q, "targets", "Int");
  q = p;
  q.weight = p.weight.to(torch::kFloat64);
  expect_loss_error(q, "weight", "Double");
  q.weight = torch::zeros({9, 5});
  expect_loss_error(q, "weight", "[9, 5]");
  q.hidden = torch::zeros({8});
  expect_loss_error(q, "hidden", "Float [8]");
}

}  // namespace
}  // namespace gsa::nn
