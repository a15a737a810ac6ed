#include "kernels/common/vec_plan.h"

#include "gsa/error.h"
#include "kernels/common/plans.h"

namespace gsa::cuda {

VecConfig choose_vec(DType dtype, std::initializer_list<std::int64_t> sizes,
                     std::initializer_list<const void*> pointers) {
  constexpr int kBytes = 16;
  const int width = kBytes / static_cast<int>(size_of(dtype));
  for (const std::int64_t size : sizes) {
    if (size % width != 0) return {.width = 1, .why = "a size or stride that is no multiple of 16 bytes"};
  }
  for (const void* pointer : pointers) {
    if (reinterpret_cast<std::uintptr_t>(pointer) % kBytes != 0) {
      return {.width = 1, .why = "an address that is no multiple of 16 bytes"};
    }
  }
  return {.width = width, .why = "sizes and addresses are multiples of 16 bytes"};
}

std::string to_string(const VecConfig& config) {
  return concat(config.width == 1 ? "single elements" : concat("vectors of ", config.width, " elements"),
                ": ", config.why);
}

void print_vec_plan(const char* op, DType dtype, std::initializer_list<std::int64_t> sizes,
                    const VecConfig& config) {
  std::string shape;
  for (const std::int64_t size : sizes) shape += concat(size, ", ");
  print_plan(op, concat("sizes ", shape, name_of(dtype)), to_string(config));
}

}  // namespace gsa::cuda
