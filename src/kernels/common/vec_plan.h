// Whether a kernel that is bound by memory reads and writes vectors of 16 bytes or single elements, from facts
// alone: no CUDA header, so that choices are tested without a GPU.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "gsa/dtype.h"

namespace gsa::cuda {

struct VecConfig {
  int width = 1;  // elements of a Vec
  const char* why = "";
};

// Vectors of 16 bytes where every size (in elements) is a multiple of them and every pointer is aligned; null counts as
// aligned.
VecConfig choose_vec(DType dtype, std::initializer_list<std::int64_t> sizes,
                     std::initializer_list<const void*> pointers);

// Such as "vectors of 8 elements: sizes and addresses are multiples of 16 bytes".
std::string to_string(const VecConfig& config);

// The line of an operator that has no other choice to make (common/plans.h).
void print_vec_plan(const char* op, DType dtype, std::initializer_list<std::int64_t> sizes,
                    const VecConfig& config);

}  // namespace gsa::cuda
