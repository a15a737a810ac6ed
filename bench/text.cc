#include "text.h"

#include <algorithm>
#include <cstdio>

#include "gsa/error.h"

namespace gsa::bench {

namespace {

// To a width in characters.
std::string padded(const std::string& text, std::size_t width, bool left) {
  const auto starts_character = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; };
  const auto length = static_cast<std::size_t>(std::count_if(text.begin(), text.end(), starts_character));
  const std::string space(length < width ? width - length : 0, ' ');
  return left ? text + space : space + text;
}

}  // namespace

std::string format(const char* pattern, double value) {
  char text[64];
  std::snprintf(text, sizeof text, pattern, value);
  return text;
}

std::string duration(double seconds) {
  const auto [value, unit] = seconds >= 1      ? std::pair(seconds, "s")
                             : seconds >= 1e-3 ? std::pair(seconds * 1e3, "ms")
                                               : std::pair(seconds * 1e6, "us");
  return concat(format(value >= 100 ? "%.0f" : value >= 10 ? "%.1f" : "%.2f", value), " ", unit);
}

std::string line(const std::vector<Cell>& cells) {
  std::string text;
  for (const Cell& cell : cells)
    text += (text.empty() ? "" : "  ") + padded(cell.text, cell.width, cell.left);
  return text;
}

}  // namespace gsa::bench
