// skinny_linear against its reference: sizes that leave remainders everywhere, rows beside others and alone,
// chains of kernels that overlap, NaN.
#include <gtest/gtest.h>

#include "cuda_call.h"
#include "kernels/skinny_linear/skinny_linear_cuda.h"
#include "problems.h"
#include "reference/skinny_linear.h"

namespace gsa::testing {
namespace {

struct Case {
  const char* name;
  std::int64_t rows, size, outputs;
  bool norm = false, bias = false, residual = false, swiglu = false;
};
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

const std::vector<Case> kCases = {
    {"one", 1, 16, 1},
    {"one_normed", 1, 16, 1, true},
    {"fewer_steps_than_warps", 3, 48, 37, false, true},
    {"rest_of_a_chunk", 7, 2064, 200, false, false, true},
    {"partial_tiles", 8, 1536, 333, true, true},
    {"everything", 8, 2048, 520, true, true, true},
    {"nine_rows", 9, 1040, 300, true, false, true},
    {"sixteen_rows", 16, 2048, 410, true, true},
    {"sixteen_rows_plain", 16, 5504, 150, false, false, true},
    {"swiglu", 8, 512, 77, true, false, false, true},
    {"swiglu_plain", 5, 272, 1000, false, false, false, true},
    {"swiglu_sixteen_rows", 16, 1024, 129, true, false, false, true},
    {"many_outputs", 2, 64, 20011},  // several tiles a block
};

constexpr double kEps = 1e-5;

struct Problem {
  Case c;
  DType dtype;
  Tensor x, norm, weight, bias, residual;

  Problem(DType type, const Case& what, std::uint64_t seed) : c(what), dtype(type) {
    Random random(seed);
    const auto normal = [&](std::int64_t rows, std::int64_t size, double mean, double spread) {
      Tensor tensor(dtype, rows, 1, size);
      tensor.fill([&] { return mean + spread * random.normal(); });
      return tensor;
    };
    x = normal(c.rows, c.size, 0, 2);
    if (c.norm) norm = normal(1, c.size, 1, 0.3);
    weight =
        normal(c.swiglu ? 2 * c.outputs : c.outputs, c.size, 0, 1 / std::sqrt(static_cast<double>(c.size)));
    if (c.bias) bias = normal(1, c.outputs, 0, 1);
    if (c.residual) residual = normal(c.rows, c.outputs, 0, 1);
  }

  // Of rows first .. first + rows - 1.
  Tensor run(std::int64_t first, std::int64_t rows, bool settled) const {
    const Tensor some = x.slice(first, first + rows);
    const Tensor beside = c.residual ? residual.slice(first, first + rows) : Tensor();
    Tensor y(dtype, rows, 1, c.outputs);
    CudaCall call;
    SkinnyLinearArgs args = {dtype, rows, c.size, c.outputs, c.swiglu, kEps};
    const auto bytes = [&](std::int64_t elements) {
      return elements * static_cast<std::int64_t>(size_of(dtype));
    };
    args.x = call.input(some.data(), bytes(rows * c.size));
    args.norm = call.input(norm.data(), bytes(c.size));
    args.weight = call.input(weight.data(), bytes(weight.tokens() * c.size));
    args.bias = call.input(bias.data(), bytes(c.outputs));
    args.residual = call.input(beside.data(), bytes(rows * c.outputs));
    args.y = call.output(y.data(), bytes(rows * c.outputs));
    args.settled = settled;
    call.run([&](const cuda::Context& context) { cuda::skinny_linear(args, context); });
    return y;
  }
  Tensor run(bool settled = false) const { return run(0, c.rows, settled); }

  template <typename Real>
  std::vector<Real> expected() const {
    reference::SkinnyLinear<Real> in;
    in.x = x.values<Real>();
    in.norm = norm.values<Real>();
    in.weight = weight.values<Real>();
    in.bias = bias.values<Real>();
    in.residual = residual.values<Real>();
    in.size = c.size;
    in.swiglu = c.swiglu;
    in.eps = static_cast<Real>(kEps);
    return reference::skinny_linear(
        in, [&](Real value) { return static_cast<Real>(round_to(dtype, static_cast<double>(value))); });
  }
};

class SkinnyLinearOnCuda : public ::testing::TestWithParam<std::tuple<DType, Case>> {
 protected:
  void SetUp() override {
    if (!cuda::current_device().hopper()) GTEST_SKIP() << "skinny_linear is for compute capability 9.0";
  }
  ~SkinnyLinearOnCuda() override { CudaCall::as_graph(false); }
};

TEST_P(SkinnyLinearOnCuda, MatchesTheReference) {
  const auto& [dtype, c] = GetParam();
  const Problem problem(dtype, c, 31);
  const std::vector<double> exact = problem.expected<double>();
  const std::vector<float> plain = problem.expected<float>();
  for (const bool settled : {false, true}) {
    // Roundings before the last one may fall to the other side.
    EXPECT_TRUE(accurate(problem.run(settled), exact, plain, forward_tolerance(dtype, 2)));
  }
}

TEST_P(SkinnyLinearOnCuda, RowsDoNotDependOnTheirNeighbours) {
  const auto& [dtype, c] = GetParam();
  const Problem problem(dtype, c, 32);
  const Tensor all = problem.run();
  for (std::int64_t row = 0; row < c.rows; ++row) {
    EXPECT_TRUE(same_bits(problem.run(row, 1, false), all.slice(row, row + 1))) << "row " << row;
  }
  const std::int64_t half = c.rows / 2;
  EXPECT_TRUE(same_bits(problem.run(half, c.rows - half, true), all.slice(half, c.rows)));
}

TEST_P(SkinnyLinearOnCuda, NanStaysInItsRow) {
  const auto& [dtype, c] = GetParam();
  Problem problem(dtype, c, 33);
  const Tensor clean = problem.run();
  const std::int64_t row = c.rows / 2;
  problem.x.set(row, 0, c.size - 1, kNan);
  const Tensor dirty = problem.run();
  for (std::int64_t r = 0; r < c.rows; ++r) {
    if (r == row) continue;
    EXPECT_TRUE(same_bits(dirty.slice(r, r + 1), clean.slice(r, r + 1))) << "row " << r;
  }
  for (std::int64_t n = 0; n < c.outputs; ++n) ASSERT_TRUE(std::isnan(dirty.at(row, 0, n))) << n;
}

INSTANTIATE_TEST_SUITE_P(Cuda, SkinnyLinearOnCuda,
                         ::testing::Combine(::testing::Values(DType::bf16, DType::f16),
                                            ::testing::ValuesIn(kCases)),
                         [](const auto& p) {
                           return std::string(name_of(std::get<0>(p.param))) + "_" +
                                  std::get<1>(p.param).name;
                         });

// Eight layers of a chain in which every kernel reads what the one before it wrote, in place, and begins
// before it has ended: as a graph and directly the same bits as one product at a time.
TEST(SkinnyLinearChain, OverlappingKernelsGiveWhatSingleOnesGive) {
  if (!cuda::current_device().hopper()) GTEST_SKIP() << "skinny_linear is for compute capability 9.0";
  constexpr std::int64_t kRows = 5, kSize = 1024, kInner = 1536, kLayers = 8;
  Random random(34);
  const auto normal = [&](std::int64_t rows, std::int64_t size, double spread) {
    Tensor tensor(DType::bf16, rows, 1, size);
    tensor.fill([&] { return spread * random.normal(); });
    return tensor;
  };
  const Tensor start = normal(kRows, kSize, 1), norm = normal(1, kSize, 1);
  std::vector<Tensor> up, down;
  for (std::int64_t n = 0; n < kLayers; ++n) {
    up.push_back(normal(2 * kInner, kSize, 0.03));
    down.push_back(normal(kSize, kInner, 0.03));
  }
  const auto run = [&](bool together, bool settled) {
    Tensor x = start, inner(DType::bf16, kRows, 1, kInner);
    const auto enqueue = [&](CudaCall& call, std::int64_t n, bool is_down, const cuda::Context* context) {
      const Tensor& weight = is_down ? down[static_cast<std::size_t>(n)] : up[static_cast<std::size_t>(n)];
      SkinnyLinearArgs args;
      args.rows = kRows;
      args.size = is_down ? kInner : kSize;
      args.outputs = is_down ? kSize : kInner;
      args.swiglu = !is_down;
      args.eps = kEps;
      args.settled = settled;
      void* const stream = call.output(x.data(), kRows * kSize * 2);
      void* const between = call.output(inner.data(), kRows * kInner * 2);
      args.x = is_down ? between : stream;
      args.y = is_down ? stream : between;
      args.residual = is_down ? stream : nullptr;
      args.norm = is_down ? nullptr : call.input(norm.data(), kSize * 2);
      args.weight = call.input(weight.data(), weight.tokens() * weight.size() * 2);
      if (context != nullptr) cuda::skinny_linear(args, *context);
    };
    std::vector<std::pair<std::int64_t, bool>> order;
    for (std::int64_t n = 0; n < kLayers; ++n) {
      order.emplace_back(n, false);
      order.emplace_back(n, true);
    }
    if (together) {
      CudaCall call;
      for (const auto& [n, is_down] : order) enqueue(call, n, is_down, nullptr);  // memory first
      call.run([&](const cuda::Context& context) {
        for (const auto& [n, is_down] : order) enqueue(call, n, is_down, &context);
      });
    } else {
      for (const auto& [n, is_down] : order) {
        CudaCall call;
        enqueue(call, n, is_down, nullptr);
        call.run([&](const cuda::Context& context) { enqueue(call, n, is_down, &context); });
      }
    }
    return x;
  };
  const Tensor expected = run(false, false);
  for (const bool graph : {false, true}) {
    CudaCall::as_graph(graph);
    for (const bool settled : {false, true}) {
      EXPECT_TRUE(same_bits(run(true, settled), expected)) << "graph " << graph << ", settled " << settled;
    }
  }
  CudaCall::as_graph(false);
}

TEST(SkinnyLinearArguments, OtherDevicesAreRefused) {
  const Problem problem(DType::bf16, kCases[0], 35);
  const cuda::Device other = {8, 0, 108, 163 * 1024};
  CudaCall::pretend(&other);
  try {
    problem.run();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("compute capability 9.0"), std::string::npos) << error.what();
  }
  CudaCall::pretend(nullptr);
}

}  // namespace
}  // namespace gsa::testing
