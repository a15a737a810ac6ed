// The shape of attention, as attend, attend_lse, decode and indexer_kl take it.
#pragma once

#include <cstdint>
#include <string>

#include "gsa/dtype.h"

namespace gsa {

struct AttendShape {
  DType dtype = DType::f32;
  std::int64_t heads = 0;  // a multiple of kv_heads
  std::int64_t kv_heads = 0;
  std::int64_t head_size = 0;  // 1 .. 256
  double scale = 1;
};

// Such as "16/4 heads of 128, bfloat16".
std::string describe(const AttendShape& shape);

namespace check {

void attend_shape(const char* op, const AttendShape& shape);

}  // namespace check

}  // namespace gsa
