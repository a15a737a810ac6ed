// Text for XML and HTML, and numbers as people write them.
#pragma once

#include <string>
#include <string_view>

namespace gsa::eval {

// For element content and quoted attributes. What XML cannot hold (control characters, bytes that are no
// UTF-8) becomes U+FFFD: a model may write anything.
std::string xml_escaped(std::string_view text);

// Shortest form with at most this many significant digits: 0.25, 1.5, 300, 12K (from 10,000 on), 4M.
std::string short_number(double value, int digits = 3);

// 12.5 %, with at most one decimal.
std::string short_percent(double share);

}  // namespace gsa::eval
