// Kernels that are bound by memory: vectors or single elements, and who shares a row. From facts alone, so it is tested
// without a GPU.
#include "kernels/common/vec_plan.h"

#include <gtest/gtest.h>

#include "gsa/error.h"
#include "kernels/gate/gate_plan.h"
#include "kernels/rms_norm/rms_norm_plan.h"

namespace gsa::cuda {
namespace {

constexpr std::int64_t kAddress = 1 << 20;
const void* at(std::int64_t address) { return reinterpret_cast<const void*>(address); }

TEST(VecPlan, SizesAndAddressesAreMultiplesOf16Bytes) {
  for (const auto& [dtype, width] : {std::pair(DType::f32, 4), {DType::bf16, 8}, {DType::f16, 8}}) {
    const std::int64_t bytes = static_cast<std::int64_t>(size_of(dtype));
    EXPECT_EQ(choose_vec(dtype, {64, 128}, {at(kAddress), nullptr}).width, width);
    for (int rest = 1; rest < width; ++rest) {
      EXPECT_EQ(choose_vec(dtype, {64, 128 + rest}, {at(kAddress)}).width, 1) << rest;
      EXPECT_EQ(choose_vec(dtype, {64}, {nullptr, at(kAddress + rest * bytes)}).width, 1) << rest;
    }
  }
  EXPECT_EQ(to_string(choose_vec(DType::bf16, {128}, {at(kAddress)})),
            "vectors of 8 elements: sizes and addresses are multiples of 16 bytes");
  EXPECT_EQ(to_string(choose_vec(DType::bf16, {128}, {at(kAddress + 2)})),
            "single elements: an address that is no multiple of 16 bytes");
}

RmsNormConfig norm_of(std::int64_t size, int width) {
  return choose_rms_norm("rms_norm",
                         {.dtype = DType::bf16, .size = size, .vec = {.width = width, .why = ""}});
}

TEST(RmsNormPlan, LongRowsHaveABlockEach) {
  struct Expected {
    std::int64_t vecs;  // of a row
    int held;
    bool block_row;
  };
  for (const int width : {1, 8}) {
    for (const auto& [vecs, held, block_row] : {Expected{1, 1, false},
                                                {32, 1, false},
                                                {33, 2, false},
                                                {64, 2, false},
                                                {65, 1, true},
                                                {256, 1, true},
                                                {257, 2, true},
                                                {512, 2, true},
                                                {513, 8, true},
                                                {2048, 8, true}}) {
      const RmsNormConfig config = norm_of(vecs * width, width);
      EXPECT_EQ(config.vecs, held) << vecs;
      EXPECT_EQ(config.block_row, block_row) << vecs;
    }
  }
  try {
    norm_of(2049 * 8, 8);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(
        error.what(),
        "gsa::rms_norm: argument 'size': expected at most 16384 elements of bfloat16 on a CUDA device (2048 "
        "where rows are not aligned to 16 bytes), got 16392");
  }
  EXPECT_EQ(
      to_string(choose_rms_norm("rms_norm", {.size = 4096, .vec = choose_vec(DType::bf16, {4096}, {})})),
      "a row a block, 2 vectors a thread, vectors of 8 elements: sizes and addresses are multiples of 16 "
      "bytes");
}

TEST(GatePlan, ContiguousTensorsAreOneRow) {
  const GateShape shape = {.dtype = DType::bf16, .tokens = 5, .heads = 3, .head_size = 20};
  const GateOperand whole = {.rows = {.data = at(kAddress), .token_stride = 60, .head_stride = 20}};
  // 300 elements are no multiple of 8: single ones, of one row all the same.
  GateConfig config = choose_gate(shape, {whole, whole});
  EXPECT_EQ(config.kernel, GateConfig::Kernel::rows);
  EXPECT_EQ(config.vec.width, 1);
  EXPECT_EQ(config.shape.head_size, 300);
  EXPECT_EQ(config.shape.tokens * config.shape.heads, 1);

  GateShape even = shape;
  even.tokens = 6;  // 360 are
  config = choose_gate(even, {whole, whole});
  EXPECT_EQ(config.kernel, GateConfig::Kernel::flat);
  EXPECT_EQ(config.vec.width, 8);
  EXPECT_EQ(to_string(config),
            "one row, vectors of 8 elements: sizes and addresses are multiples of 16 bytes");

  GateOperand strided = whole;
  strided.rows.token_stride = 64;
  config = choose_gate(even, {whole, strided});
  EXPECT_EQ(config.kernel, GateConfig::Kernel::rows);
  EXPECT_EQ(config.vec.width, 1);  // a head of 20
  EXPECT_EQ(config.shape.head_size, 20);
  even.tokens = 1;  // of one token the stride does not count
  even.heads = 2;
  EXPECT_EQ(choose_gate(even, {whole, strided}).kernel, GateConfig::Kernel::flat);
}

TEST(GatePlan, VectorsNeedStridesToo) {
  const GateShape shape = {.dtype = DType::f16, .tokens = 4, .heads = 2, .head_size = 64};
  const auto kernel_of = [&](std::int64_t address, std::int64_t token_stride, std::int64_t head_stride) {
    return choose_gate(
        shape, {{.rows = {.data = at(address), .token_stride = token_stride, .head_stride = head_stride}}});
  };
  EXPECT_EQ(kernel_of(kAddress, 256, 64).vec.width, 8);
  EXPECT_EQ(kernel_of(kAddress, 256, 64).kernel, GateConfig::Kernel::rows);
  EXPECT_EQ(kernel_of(kAddress, 129, 64).vec.width, 1);
  EXPECT_EQ(kernel_of(kAddress, 256, 65).vec.width, 1);
  EXPECT_EQ(kernel_of(kAddress + 2, 128, 64).vec.width, 1);
  EXPECT_EQ(kernel_of(kAddress + 2, 128, 64).shape.head_size, 512);  // contiguous all the same
}

TEST(GatePlan, AGateAHeadIsReadAlone) {
  const GateShape shape = {.dtype = DType::f32, .tokens = 4, .heads = 3, .head_size = 64, .head_wise = true};
  const GateOperand x = {.rows = {.data = at(kAddress), .token_stride = 192, .head_stride = 64}};
  const GateOperand z = {.rows = {.data = at(kAddress + 4), .token_stride = 3, .head_stride = 1},
                         .gate = true};
  const GateConfig config = choose_gate(shape, {x, z});
  EXPECT_EQ(config.kernel, GateConfig::Kernel::heads);
  EXPECT_EQ(config.vec.width, 4);
  EXPECT_EQ(config.shape.head_size, 64);
  EXPECT_EQ(config.lanes_shift, 2);  // 16 vectors, four of each lane
  EXPECT_EQ(
      to_string(config),
      "a gate a head, 4 lanes a row, vectors of 4 elements: sizes and addresses are multiples of 16 bytes");
}

// As many lanes as share a row's vectors, up to a warp: eight, with two vectors each, for a head of 128 in 16 bits.
TEST(GatePlan, LanesShareARow) {
  const auto lanes = [](DType dtype, std::int64_t size) {
    const GateShape shape = {.dtype = dtype, .tokens = 4, .heads = 2, .head_size = size, .head_wise = true};
    const GateOperand x = {.rows = {.data = at(kAddress), .token_stride = 2 * size, .head_stride = size}};
    return 1 << choose_gate(shape, {x}).lanes_shift;
  };
  EXPECT_EQ(lanes(DType::bf16, 128), 8);
  EXPECT_EQ(lanes(DType::bf16, 8), 1);
  EXPECT_EQ(lanes(DType::f32, 128), 8);
  EXPECT_EQ(lanes(DType::bf16, 59), 32);  // single elements
  EXPECT_EQ(lanes(DType::bf16, 4096), 32);
}

}  // namespace
}  // namespace gsa::cuda
