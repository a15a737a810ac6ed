// Exponentials of many numbers at a time, for softmax over a vocabulary: plain loops that a compiler vectorises, with
// the same bits on every processor.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

namespace gsa::infer {

// exp(x) for x <= 0, within two units in the last place; 0 below -708, where it is no normal number.
inline double exp_of_negative(double x) {
  constexpr double kLog2E = 0x1.71547652b82fep0, kLn2High = 0x1.62e42fefa3800p-1,
                   kLn2Low = 0x1.ef35793c76730p-45;
  constexpr double kRound = 0x1.8p52;  // the sum's last bits are the rounded number
  const double rounded = x * kLog2E + kRound, n = rounded - kRound;
  const double r = (x - n * kLn2High) - n * kLn2Low;  // at most ln(2) / 2
  double y = 1.0 / 6227020800;                        // the series, term by term
  y = y * r + 1.0 / 479001600;
  y = y * r + 1.0 / 39916800;
  y = y * r + 1.0 / 3628800;
  y = y * r + 1.0 / 362880;
  y = y * r + 1.0 / 40320;
  y = y * r + 1.0 / 5040;
  y = y * r + 1.0 / 720;
  y = y * r + 1.0 / 120;
  y = y * r + 1.0 / 24;
  y = y * r + 1.0 / 6;
  y = y * r + 0.5;
  y = y * r + 1.0;
  y = y * r + 1.0;
  const std::uint64_t scaled =
      std::bit_cast<std::uint64_t>(y) + (std::bit_cast<std::uint64_t>(rounded) << 52);
  const std::uint64_t negative =
      std::bit_cast<std::uint64_t>(x + 708) >> 63;  // without a branch, which no vector has
  return std::bit_cast<double>(scaled & (negative - 1));
}

// The sum of f(0) .. f(count - 1), in an order that depends on count alone.
template <class F>
double sum_of(std::size_t count, const F& f) {
  constexpr std::size_t kLanes = 8;
  double lanes[kLanes] = {};
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += f(i + lane);
  }
  for (std::size_t lane = 0; i + lane < count; ++lane) lanes[lane] += f(i + lane);
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

// Where the first of the highest numbers stands.
template <class Number>
std::size_t first_highest(std::span<const Number> numbers) {
  constexpr std::size_t kLanes = 16;
  Number lanes[kLanes];
  for (Number& lane : lanes) lane = numbers.front();
  std::size_t i = 0;
  for (; i + kLanes <= numbers.size(); i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = lanes[lane] < numbers[i + lane] ? numbers[i + lane] : lanes[lane];
    }
  }
  for (; i < numbers.size(); ++i) lanes[0] = lanes[0] < numbers[i] ? numbers[i] : lanes[0];
  Number highest = lanes[0];
  for (const Number lane : lanes) highest = highest < lane ? lane : highest;
  i = 0;
  while (numbers[i] != highest) ++i;
  return i;
}

}  // namespace gsa::infer
