// Numbers and tables for a terminal.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "core/number_text.h"  // grouped(), fixed()

namespace gsa::cli {

// Whether the user's locale shows UTF-8 (LC_ALL, LC_CTYPE or LANG, the first that is set).
bool shows_utf8();
// The one or the other.
inline const char* symbol(const char* utf8, const char* plain) { return shows_utf8() ? utf8 : plain; }
// Whether a stream (STDOUT_FILENO, ...) is a terminal that moves its cursor; TERM=dumb does not.
bool is_terminal(int descriptor);

std::string scaled(double value, const char* unit);  // 3.65 TFLOP; three digits
std::string scaled_bytes(double value);              // 1.50 GB (powers of 1000)
std::string percent(double share);                   // 8.4 %

// Rows of text under a heading; the first column to the left, others to the right. An empty row is a blank
// line.
class Table {
 public:
  explicit Table(std::vector<std::string> heading) { rows_.push_back(std::move(heading)); }
  void row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  void line() { rows_.emplace_back(); }  // a rule
  void print(std::ostream& out) const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace gsa::cli
