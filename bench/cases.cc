#include "cases.h"

#include "gsa/error.h"

namespace gsa::bench {

namespace {

Case make_case(Kind kind, std::int64_t length, at::ScalarType type, Pattern pattern, bool quick) {
  std::string name = concat(name_of(kind), "-", length / 1024, "k-", type_name(type));
  if (kind != Kind::decode) name += concat("-", name_of(pattern));
  return {name, kind, kind == Kind::decode ? 1 : length, length, type, pattern, quick};
}

}  // namespace

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::prefill:
      return "prefill";
    case Kind::train:
      return "train";
    case Kind::decode:
      return "decode";
    case Kind::stage:
      return "stage";
  }
  return "unknown";
}

const char* name_of(Pattern pattern) { return pattern == Pattern::overlap ? "overlap" : "random"; }

const char* type_name(at::ScalarType type) { return type == at::kBFloat16 ? "bf16" : "fp32"; }

std::string short_length(std::int64_t tokens) {
  return tokens % 1024 == 0 ? concat(tokens / 1024, "K") : concat(tokens);
}

std::vector<Case> all_cases() {
  constexpr std::int64_t k = 1024;
  std::vector<Case> cases;
  for (const std::int64_t length : {1 * k, 4 * k, 16 * k, 32 * k}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      for (const Pattern pattern : {Pattern::overlap, Pattern::random}) {
        cases.push_back(make_case(Kind::prefill, length, type, pattern, length <= 4 * k));
      }
    }
  }
  for (const std::int64_t length : {32 * k, 128 * k}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      cases.push_back(make_case(Kind::decode, length, type, Pattern::random, true));
    }
  }
  for (const std::int64_t length : {4 * k, 16 * k}) {
    cases.push_back(make_case(Kind::train, length, at::kFloat, Pattern::overlap, false));
  }
  cases.push_back(make_case(Kind::stage, 128 * k, at::kFloat, Pattern::overlap, false));
  return cases;
}

}  // namespace gsa::bench
