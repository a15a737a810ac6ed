#include "kernels/common/plans.h"

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>
#include <string_view>

#include "gsa/error.h"
#include "kernels/common/simd.h"

namespace gsa {

bool prints_plans() {
  static const bool wanted = [] {
    const char* const value = std::getenv("GSA_PRINT_PLANS");
    return value != nullptr && std::string_view(value) != "" && std::string_view(value) != "0";
  }();
  return wanted;
}

void print_plan(const char* op, const std::string& shape, const std::string& plan) {
  static std::mutex mutex;
  static std::set<std::string> known;
  std::string line = concat("gsa::", op, ": ", shape, ": ", plan, "\n");
  const std::lock_guard lock(mutex);
  const auto [at, is_new] = known.insert(std::move(line));
  if (is_new) std::fputs(at->c_str(), stderr);
}

void print_cpu_plan(const char* op, const std::string& shape, bool bf16) {
  print_plan(op, shape, concat("cpu, ", simd_in_use(), bf16 ? ", products of bfloat16" : ""));
}

std::string describe(const Sequences& sequences) {
  const auto some = [](std::int64_t count, const char* one, const char* more) {
    return concat(count, " ", count == 1 ? one : more);
  };
  return concat(some(sequences.count, "sequence", "sequences"), ", ",
                some(sequences.total_queries(), "query", "queries"), ", up to ",
                some(sequences.longest_keys(), "key", "keys"));
}

}  // namespace gsa
