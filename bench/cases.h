// The list of cases.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "inputs.h"

namespace gsa::bench {

enum class Kind {
  prefill,  // forward over a whole sequence
  train,    // forward and backward over a whole sequence
  decode,   // one query against a cache
  stage,    // forward over a long sequence, for its memory
};

struct Case {
  std::string name;  // kind-length-type[-pattern]
  Kind kind = Kind::prefill;
  std::int64_t queries = 0;
  std::int64_t keys = 0;
  at::ScalarType type = at::kFloat;
  Pattern pattern = Pattern::overlap;
  bool quick = false;
};

const char* name_of(Kind kind);
const char* name_of(Pattern pattern);
const char* type_name(at::ScalarType type);
std::string short_length(std::int64_t tokens);  // 32768 is "32K"

// In the order in which they run; cases of a kind stand together.
std::vector<Case> all_cases();

}  // namespace gsa::bench
