// The one error type of the project. A user's mistake throws gsa::Error; a broken invariant asserts.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace gsa {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Streams its arguments into one string: concat("[", 3, ", ", 4, "]") is "[3, 4]".
template <typename... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

// Every complaint about an argument has this shape:
//   gsa::attend: argument 'k': expected 4 key/value heads, got 3
[[noreturn]] inline void bad_argument(const char* op, const char* argument, const std::string& expected,
                                      const std::string& got) {
  throw Error(concat("gsa::", op, ": argument '", argument, "': expected ", expected, ", got ", got));
}

}  // namespace gsa
