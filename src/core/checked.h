// Arithmetic on sizes that cannot wrap around.
#pragma once

#include <cstdint>

#include "gsa/error.h"

namespace gsa {

// a * b for non-negative sizes; throws when the product leaves int64.
inline std::int64_t checked_mul(std::int64_t a, std::int64_t b, const char* op, const char* argument) {
  std::int64_t product = 0;
  if (a < 0 || b < 0 || __builtin_mul_overflow(a, b, &product)) {
    bad_argument(op, argument, "sizes whose product fits in 63 bits", concat(a, " x ", b));
  }
  return product;
}

}  // namespace gsa
