// Which kernel of gate runs, from facts alone: no CUDA header, so that choices are tested without a GPU.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <string>

#include "gsa/tensor_view.h"
#include "kernels/common/vec_plan.h"
#include "kernels/gate/gate.h"

namespace gsa::cuda {

struct GateOperand {
  ConstRows rows;
  bool gate = false;  // has one element a head when head-wise
};

struct GateConfig {
  // flat:  contiguous tensors are one long row, so that a vector's place takes no division
  // rows:  rows of any stride
  // heads: one gate a head
  enum class Kernel { flat, rows, heads };
  Kernel kernel = Kernel::rows;
  GateShape shape;  // as the kernel sees it: contiguous tensors are one row
  VecConfig vec;
  int lanes_shift = 0;  // heads: 1 << lanes_shift neighbouring lanes treat a row
};

// heads: vectors of a row that a lane treats at a time, for elements of so many bytes: such that eight lanes, 128 bytes
// side by side, treat a head of 128.
constexpr int gate_row_vecs(std::size_t element_bytes) { return static_cast<int>(element_bytes); }

GateConfig choose_gate(const GateShape& shape, std::initializer_list<GateOperand> operands);

// A line to print, such as "one row, vectors of 8 elements: sizes and addresses are multiples of 16 bytes", or, of
// heads, "a gate a head, 8 lanes a row, ...".
std::string to_string(const GateConfig& config);

}  // namespace gsa::cuda
