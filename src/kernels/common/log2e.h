// The logarithm of e to base 2: exponents are taken to base 2 everywhere.
#pragma once

namespace gsa::cuda {

inline constexpr double kLog2EDouble = 1.4426950408889634;
inline constexpr float kLog2E = 1.4426950408889634f;

}  // namespace gsa::cuda
