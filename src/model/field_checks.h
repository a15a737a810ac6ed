#pragma once

#include <cstdint>
#include <string>

#include "gsa/error.h"

namespace gsa::nn {

// Refusals of a configuration's fields, in the name of what it configures.
struct FieldChecks {
  const char* op;

  template <typename T>
  void operator()(bool holds, const char* field, const std::string& expected, const T& got) const {
    if (!holds) bad_argument(op, field, expected, concat(got));
  }
  void range(const char* field, std::int64_t value, std::int64_t low, std::int64_t high) const {
    (*this)(value >= low && value <= high, field, concat("a number in ", low, " .. ", high), value);
  }
};

}  // namespace gsa::nn
