// A stream of draws from a key, and what tasks draw: indices, orders, letters.
#pragma once

#include <cstdint>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/philox.h"

namespace gsa::ruler {

class Random {
 public:
  explicit Random(std::uint64_t key) : key_(key) {}

  // A stream of its own: draws from one never move those of another.
  Random stream(std::uint64_t number) const { return Random(philox_bits(key_, 1, number)); }

  std::uint64_t bits() { return philox_bits(key_, 0, step_++); }

  // 0 .. count - 1, each as likely.
  std::uint64_t below(std::uint64_t count) {
    const std::uint64_t uneven = -count % count;  // so many of the lowest draws are one too many for some
    for (;;) {
      const std::uint64_t draw = bits();
      if (draw >= uneven) return draw % count;
    }
  }

  template <typename T>
  const typename T::value_type& pick(const T& values) {
    return values[below(values.size())];
  }

  template <typename T>
  void shuffle(std::vector<T>& values) {
    for (std::size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[below(i)]);
  }

  // Different numbers of 0 .. count - 1, in the order drawn.
  std::vector<std::size_t> choose(std::size_t count, std::size_t chosen) {
    std::vector<std::size_t> numbers(count);
    std::iota(numbers.begin(), numbers.end(), std::size_t{0});
    for (std::size_t i = 0; i < chosen; ++i) std::swap(numbers[i], numbers[i + below(count - i)]);
    numbers.resize(chosen);
    return numbers;
  }

  std::string letters(int count, std::string_view alphabet) {
    std::string text;
    for (int i = 0; i < count; ++i) text += pick(alphabet);
    return text;
  }

 private:
  std::uint64_t key_, step_ = 0;
};

}  // namespace gsa::ruler
