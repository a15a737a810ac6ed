#include "kernels/attention/attend_shape.h"

#include <cmath>

#include "gsa/error.h"
#include "kernels/common/checks.h"

namespace gsa {

std::string describe(const AttendShape& shape) {
  return concat(shape.heads, "/", shape.kv_heads, " heads of ", shape.head_size, ", ", name_of(shape.dtype));
}

void check::attend_shape(const char* op, const AttendShape& shape) {
  constexpr std::int64_t kMaxHeads = 1 << 16;
  in_range(op, "heads", shape.heads, 1, kMaxHeads);
  in_range(op, "kv_heads", shape.kv_heads, 1, kMaxHeads);
  in_range(op, "head_size", shape.head_size, 1, kMaxHeadSize);
  if (shape.heads % shape.kv_heads != 0) {
    bad_argument(op, "heads", concat("a multiple of kv_heads = ", shape.kv_heads), concat(shape.heads));
  }
  if (!std::isfinite(shape.scale)) bad_argument(op, "scale", "a finite number", concat(shape.scale));
}

}  // namespace gsa
