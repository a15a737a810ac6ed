// Numbers and columns of text for reports.
#pragma once

#include <string>
#include <vector>

namespace gsa::bench {

std::string format(const char* pattern, double value);

// Three or four digits that count, with a unit.
std::string duration(double seconds);

struct Cell {
  std::string text;  // UTF-8
  std::size_t width;
  bool left = false;
};

std::string line(const std::vector<Cell>& cells);

}  // namespace gsa::bench
