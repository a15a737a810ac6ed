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

// Bits of HWY_TARGETS, best first: Highway numbers better targets lower. Asked once, before anything is
// disabled.
const std::vector<std::int64_t>& targets() {
  static const std::vector<std::int64_t> found = [] {
    std::vector<std::int64_t> list;
    const std::int64_t both = hwy::SupportedTargets() & HWY_TARGETS;
    for (int bit = 0; bit < 62; ++bit) {
      if ((both >> bit) & 1) list.push_back(std::int64_t{1} << bit);
    }
    return list;
  }();
  return found;
}

std::int64_t chosen = 0;  // 0: the best

}  // namespace

std::vector<std::string> simd_available() {
  std::vector<std::string> names;
  for (const std::int64_t target : targets()) names.push_back(hwy::TargetName(target));
  return names;
}

std::string simd_in_use() { return hwy::TargetName(chosen == 0 ? targets().front() : chosen); }

void use_simd(const std::string& name) {
  std::string known;
  for (const std::int64_t target : targets()) {
    if (name == hwy::TargetName(target)) {
      chosen = target;
      hwy::DisableTargets(~target);
      hwy::GetChosenTarget().Update(hwy::SupportedTargets());
      return;
    }
    known += (known.empty() ? "" : ", ") + std::string(hwy::TargetName(target));
  }
  bad_argument("use_simd", "name", concat("one of ", known), concat("'", name, "'"));
}

}  // namespace gsa
