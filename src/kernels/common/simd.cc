#include "kernels/common/simd.h"

// Highway needs this order:
// clang-format off
#include "kernels/common/targets.h"
#include "hwy/highway.h"
// clang-format on
#include "gsa/error.h"
#include "hwy/targets.h"

namespace gsa {
namespace {

struct Set {
  std::string name;
  std::int64_t target;  // of Highway
  bool bf16;            // the products that Highway does not know
};

bool has_bf16_products() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16") != 0;
#else
  return false;
#endif
}

// Best first: Highway numbers better targets lower. Asked once, before anything is disabled.
const std::vector<Set>& sets() {
  static const std::vector<Set> found = [] {
    std::vector<Set> list;
    const std::int64_t both = hwy::SupportedTargets() & HWY_TARGETS;
    for (int bit = 0; bit < 62; ++bit) {
      const std::int64_t target = std::int64_t{1} << bit;
      if ((both & target) == 0) continue;
      const std::string name = hwy::TargetName(target);
      if (target == HWY_AVX3 && has_bf16_products()) list.push_back({name + "_BF16", target, true});
      list.push_back({name, target, false});
    }
    return list;
  }();
  return found;
}

const Set* chosen = nullptr;  // null: the best

const Set& in_use() { return chosen == nullptr ? sets().front() : *chosen; }

}  // namespace

std::vector<std::string> simd_available() {
  std::vector<std::string> names;
  for (const Set& set : sets()) names.push_back(set.name);
  return names;
}

std::string simd_in_use() { return in_use().name; }

bool bf16_products() { return in_use().bf16; }

void use_simd(const std::string& name) {
  std::string known;
  for (const Set& set : sets()) {
    if (name == set.name) {
      chosen = &set;
      hwy::DisableTargets(~set.target);
      hwy::GetChosenTarget().Update(hwy::SupportedTargets());
      return;
    }
    known += (known.empty() ? "" : ", ") + set.name;
  }
  bad_argument("use_simd", "name", concat("one of ", known), concat("'", name, "'"));
}

}  // namespace gsa
