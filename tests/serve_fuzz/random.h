// Draws of a fuzzer, from a seed.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <random>
#include <span>
#include <string>

namespace gsa::serve_fuzz {

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}

  std::size_t below(std::size_t bound) { return bound == 0 ? 0 : engine_() % bound; }
  std::size_t between(std::size_t low, std::size_t high) { return low + below(high - low + 1); }
  bool one_in(std::size_t n) { return below(n) == 0; }
  const char* pick(std::initializer_list<const char*> words) { return words.begin()[below(words.size())]; }

 private:
  std::mt19937_64 engine_;
};

}  // namespace gsa::serve_fuzz
