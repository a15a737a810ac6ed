#include "core/number_text.h"

#include <cmath>
#include <cstdio>

namespace gsa {

std::string grouped(std::int64_t value) {
  std::string text = std::to_string(value);
  const std::ptrdiff_t sign = value < 0 ? 1 : 0;
  for (std::ptrdiff_t i = std::ssize(text) - 3; i > sign; i -= 3)
    text.insert(static_cast<std::size_t>(i), 1, ',');
  return text;
}

std::string fixed(double value, int decimals) {
  const int length = std::snprintf(nullptr, 0, "%.*f", decimals, value);
  std::string text(static_cast<std::size_t>(length), '\0');
  std::snprintf(text.data(), text.size() + 1, "%.*f", decimals, value);
  return text;
}

std::string three_digits(double value) {
  const double size = std::abs(value);
  return fixed(value, size < 10 ? 2 : size < 100 ? 1 : 0);
}

}  // namespace gsa
