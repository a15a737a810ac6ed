// adamw on the CPU: bound by memory.
// Highway needs this order:
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/adamw/adamw_cpu.cc"
#include "kernels/common/targets.h"
#include "hwy/foreach_target.h"
// clang-format on
#include <algorithm>
#include <cmath>

#include "hwy/highway.h"
#include "kernels/adamw/adamw_cpu.h"
#include "kernels/common/numeric-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gsa {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr std::int64_t kAdamWChunk = 1024;
constexpr std::int64_t kAdamWTask = std::int64_t{1} << 16;

// A vector of elements from i on, of a chunk whose gradients lie in g; what w becomes is also left there.
template <class D>
HWY_INLINE void adamw_step(D d, const AdamWNumbers& n, std::int64_t i, float* HWY_RESTRICT g,
                           float* HWY_RESTRICT w, float* HWY_RESTRICT m, float* HWY_RESTRICT v) {
  const auto set = [&](float x) { return hn::Set(d, x); };
  const auto gradient = hn::Mul(set(n.factor), hn::LoadU(d, g + i));
  const auto mean = hn::Add(hn::Mul(set(n.beta1), hn::LoadU(d, m + i)), hn::Mul(set(n.rest1), gradient));
  const auto square =
      hn::Add(hn::Mul(set(n.beta2), hn::LoadU(d, v + i)), hn::Mul(set(n.rest2), hn::Mul(gradient, gradient)));
  const auto below = hn::Add(hn::Mul(hn::Sqrt(square), set(n.root)), set(n.eps));
  const auto result =
      hn::Sub(hn::Mul(set(n.keep), hn::LoadU(d, w + i)), hn::Div(hn::Mul(set(n.step_size), mean), below));
  hn::StoreU(mean, d, m + i);
  hn::StoreU(square, d, v + i);
  hn::StoreU(result, d, w + i);
  hn::StoreU(result, d, g + i);
}

HWY_INLINE void adamw_chunk(const AdamWNumbers& n, std::int64_t size, float* g, float* w, float* m,
                            float* v) {
  const hn::CappedTag<float, kPad> wide;
  const hn::CappedTag<float, 1> one;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(wide));
  std::int64_t i = 0;
  for (; i + lanes <= size; i += lanes) adamw_step(wide, n, i, g, w, m, v);
  for (; i < size; ++i) adamw_step(one, n, i, g, w, m, v);
}

void adamw_target(const AdamWArgs& a, const Parallel& parallel) {
  const AdamWNumbers numbers = adamw_numbers(a);
  parallel.run((a.count + kAdamWTask - 1) / kAdamWTask, [&](std::int64_t task, int) {
    HWY_ALIGN float g[kAdamWChunk];
    const std::int64_t end = std::min(a.count, (task + 1) * kAdamWTask);
    for (std::int64_t i = task * kAdamWTask; i < end; i += kAdamWChunk) {
      const std::int64_t size = std::min(kAdamWChunk, end - i);
      load_row<float>(g, at(a.gradient, a.gradient_type, i), a.gradient_type, size, 1.0f);
      adamw_chunk(numbers, size, g, a.master + i, a.mean + i, a.square + i);
      if (a.weight != nullptr) {
        store_row<float>(at(a.weight, a.weight_type, i), a.weight_type, g, size, 1.0f);
      }
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace gsa
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gsa {
HWY_EXPORT(adamw_target);
void adamw_cpu(const AdamWArgs& args, const Parallel& parallel) {
  HWY_DYNAMIC_DISPATCH(adamw_target)(args, parallel);
}
}  // namespace gsa
#endif
