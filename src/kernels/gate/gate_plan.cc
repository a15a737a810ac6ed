#include "kernels/gate/gate_plan.h"

#include "gsa/error.h"

namespace gsa::cuda {
namespace {

bool all_contiguous(const GateShape& shape, std::initializer_list<GateOperand> operands) {
  if (shape.head_wise) return false;
  for (const auto& [rows, gate] : operands) {
    if (shape.heads > 1 && rows.head_stride != shape.head_size) return false;
    if (shape.tokens > 1 && rows.token_stride != shape.heads * shape.head_size) return false;
  }
  return true;
}

// Vectors never cross a row's end and are aligned in every tensor.
VecConfig vec_of(const GateShape& shape, std::initializer_list<GateOperand> operands) {
  VecConfig vec = choose_vec(shape.dtype, {shape.head_size}, {});
  for (const auto& [rows, gate] : operands) {
    if (vec.width == 1) break;
    if (gate && shape.head_wise) continue;
    vec = choose_vec(
        shape.dtype,
        {shape.head_size, shape.heads > 1 ? rows.head_stride : 0, shape.tokens > 1 ? rows.token_stride : 0},
        {rows.data});
  }
  return vec;
}

}  // namespace

GateConfig choose_gate(const GateShape& shape, std::initializer_list<GateOperand> operands) {
  GateConfig config;
  config.shape = shape;
  const bool flat = all_contiguous(shape, operands);
  if (flat) {
    config.shape.head_size *= shape.tokens * shape.heads;
    config.shape.tokens = config.shape.heads = 1;
  }
  config.vec = vec_of(config.shape, operands);
  // Of single elements there is one kernel.
  config.kernel = shape.head_wise                ? GateConfig::Kernel::heads
                  : flat && config.vec.width > 1 ? GateConfig::Kernel::flat
                                                 : GateConfig::Kernel::rows;
  if (config.kernel == GateConfig::Kernel::heads) {
    const std::int64_t vecs = config.shape.head_size / config.vec.width;
    const std::int64_t each = gate_row_vecs(size_of(shape.dtype));
    while (config.lanes_shift < 5 && (each << config.lanes_shift) < vecs) ++config.lanes_shift;
  }
  return config;
}

std::string to_string(const GateConfig& config) {
  const char* const kernel = config.kernel == GateConfig::Kernel::flat   ? "one row, "
                             : config.kernel == GateConfig::Kernel::rows ? "rows, "
                                                                         : "a gate a head, ";
  const bool heads = config.kernel == GateConfig::Kernel::heads;
  return concat(kernel, heads ? concat(1 << config.lanes_shift, " lanes a row, ") : std::string(),
                to_string(config.vec));
}

}  // namespace gsa::cuda
