// Work on rows of logits, a row each, on torch's threads: drawing a token from a large vocabulary takes as long as a
// step of decoding on a GPU.
#pragma once

#include <ATen/Parallel.h>

#include <cstdint>

namespace gsa::infer {

// work(0) .. work(count - 1); `width` numbers in a row. On one thread where waking the others would take longer.
template <class Work>
void share_rows(std::int64_t count, std::int64_t width, const Work& work) {
  constexpr std::int64_t kWorthIt = 1 << 15;
  at::parallel_for(0, count, count * width < kWorthIt ? count : 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) work(i);
  });
}

}  // namespace gsa::infer
