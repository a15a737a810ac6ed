// The attend stage: which kernel runs, on how many blocks.
#include "kernels/decode/cuda/attend.cuh"

#include <algorithm>
#include <limits>

#include "gsa/error.h"
#include "kernels/common/log2e.h"

namespace gsa::cuda::decoding {
namespace {

template <typename T, int size, bool aligned>
void launch_attend(const AttendParams& p, const Context& context) {
  Launch how;
  how.threads = kAttendThreads;
  how.shared_bytes = static_cast<std::size_t>(AttendLayout(size, p.stages).bytes);
  how.grid = dim3(static_cast<unsigned>(std::min(p.items, 2 * std::max(1, context.device.multiprocessors))));
  how.overlap = true;
  launch(attend_kernel<T, size, aligned>, p, how, context, "decode: attend");
}

template <typename T>
void launch_typed(const AttendParams& p, const DecodeArgs& args, const Context& context) {
  const int size = p.scratch.padded_size;
  if (!rows_aligned(args)) {
    size == 128 ? launch_attend<T, 128, false>(p, context) : launch_attend<T, 256, false>(p, context);
  } else if (size == 64) {
    launch_attend<T, 64, true>(p, context);
  } else if (size == 128) {
    launch_attend<T, 128, true>(p, context);
  } else {
    launch_attend<T, 256, true>(p, context);
  }
}

}  // namespace

void attend(const DecodeArgs& args, const DecodeConfig& config, const Scratch& scratch,
            const Context& context) {
  AttendParams p = {};
  p.cache = cache_of(args);
  p.q = args.q.data;
  p.q_token_stride = args.q.token_stride;
  p.q_head_stride = args.q.head_stride;
  p.k = args.k.data;
  p.k_page_stride = args.k.page_stride;
  p.k_token_stride = args.k.token_stride;
  p.k_head_stride = args.k.head_stride;
  p.v = args.v.data;
  p.v_page_stride = args.v.page_stride;
  p.v_token_stride = args.v.token_stride;
  p.v_head_stride = args.v.head_stride;
  p.k_t = args.index_heads > 0 ? nullptr : args.k_t;
  p.heads = static_cast<int>(args.shape.heads);
  p.kv_heads = static_cast<int>(args.shape.kv_heads);
  p.head_size = static_cast<int>(args.shape.head_size);
  p.head_tiles = (p.heads / p.kv_heads + kHeadTile - 1) / kHeadTile;
  p.rows = static_cast<int>(args.sequences * args.queries);
  const std::int64_t items = std::int64_t{p.kv_heads} * p.head_tiles * p.rows * scratch.splits;
  if (items > std::numeric_limits<std::int32_t>::max() / 64) {  // a look ahead of 32 grids stays in 31 bits
    bad_argument("decode", "max_length", "at most 2^25 splits of attention", concat(items));
  }
  p.items = static_cast<int>(items);
  p.scale = static_cast<float>(args.shape.scale * kLog2EDouble);
  p.stages = config.stages;
  p.kept = kept_of(args, scratch);
  p.scratch = scratch;
  if (args.shape.dtype == DType::bf16) {
    launch_typed<__nv_bfloat16>(p, args, context);
  } else {
    launch_typed<__half>(p, args, context);
  }
}

}  // namespace gsa::cuda::decoding
