#include "kernels/rms_norm/rms_norm_plan.h"

#include "gsa/error.h"

namespace gsa::cuda {

RmsNormConfig choose_rms_norm(const char* op, const RmsNormFacts& facts) {
  constexpr int kWarp = 32, kMaxVecs = 8;
  const std::int64_t vecs = facts.size / facts.vec.width;  // of a row
  if (vecs <= kWarp) return {.vec = facts.vec, .vecs = 1, .block_row = false};
  if (vecs <= 2 * kWarp) return {.vec = facts.vec, .vecs = 2, .block_row = false};
  for (const int held : {1, 2, kMaxVecs}) {
    if (vecs <= held * kRmsNormThreads) return {.vec = facts.vec, .vecs = held, .block_row = true};
  }
  constexpr int kMaxRow = kRmsNormThreads * kMaxVecs;
  bad_argument(op, "size",
               concat("at most ", kMaxRow * facts.vec.width, " elements of ", name_of(facts.dtype),
                      " on a CUDA device (", kMaxRow, " where rows are not aligned to 16 bytes)"),
               concat(facts.size));
}

std::string to_string(const RmsNormConfig& config) {
  return concat(config.block_row ? "a row a block, " : "a row a warp, ", config.vecs,
                config.vecs == 1 ? " vector" : " vectors", " a thread, ", to_string(config.vec));
}

}  // namespace gsa::cuda
