// What is fuzzed: every parser of files that may come from elsewhere. A target is given bytes and must either
// accept them or throw gsa::Error; another exception, a crash or a sanitizer's report is a finding.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gsa::fuzz {

struct Target {
  const char* name;
  void (*run)(std::string_view bytes);
  // Words of the format, which mutations put in and exchange.
  std::vector<std::string> dictionary;
  // Whether the first eight bytes are the length of a text that follows; mutations keep them right most of
  // the time.
  bool length_in_front = false;
};

const std::vector<Target>& targets();

}  // namespace gsa::fuzz
