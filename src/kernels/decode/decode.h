// decode: the newest queries of each sequence against a paged cache, in one call: score, select, attend,
// gate.
//
// The mathematics is that of select, attend and gate; what differs is where keys lie and that all lengths
// live in memory the kernels read, so that a captured CUDA graph replays with other lengths and pages. On the
// CPU the results are the bits of select, attend and gate on the same contiguous keys: a prompt may go
// through in chunks of any size, and each query gets what one pass over the whole would have given it.
//
//   position s of sequence n lies in page block_table[n, s / page_size], row s % page_size
//   query i of sequence n stands at position length[n] - queries + i and sees positions 0 .. that
#pragma once

#include <cstdint>

#include "core/parallel.h"
#include "gsa/dtype.h"
#include "gsa/tensor_view.h"
#include "kernels/attention/attend_shape.h"
#include "kernels/scores/scores.h"

namespace gsa {

constexpr std::int64_t kMaxDecodeSequences = 2048;  // times 16 queries: a dimension of a grid
// Positions and scratch offsets within a row stay in 31 bits.
constexpr std::int64_t kMaxDecodeLength = std::int64_t{1} << 30;

struct DecodeArgs {
  AttendShape shape;
  std::int64_t sequences = 0;  // 0 .. kMaxDecodeSequences
  std::int64_t queries = 1;    // a sequence: 1 .. 16 on a CUDA device, any number on the CPU

  ConstRows q;  // [sequences * queries, heads, head_size]
  ConstPages k;
  ConstPages v;

  std::int64_t index_heads = 0;  // 0: no indexer; the keys at `selected`, or else every visible key (dense)
  std::int64_t index_head_size = 0;
  ConstRows index_q;   // [sequences * queries, index_heads, index_head_size]
  ConstRows index_w;   // [sequences * queries, index_heads]
  ConstPages index_k;  // [page_size, index_head_size] a page
  // Keys of 8 bits: index_k is int8, and the key of row r of page p is index_k times
  // index_k_scale[p * index_k_scale_stride + r]. Null: keys of shape.dtype.
  const float* index_k_scale = nullptr;
  std::int64_t index_k_scale_stride = 0;
  const void* index_bias = nullptr;  // [index_heads], or null for zeros
  double index_scale = 1;
  ScoreForm form = ScoreForm::sigmoid;
  Budget budget;

  PageTable pages;
  std::int64_t max_length = 0;  // bound of length: sizes scratch and grids, so that a graph holds for all

  ConstRows gate;          // as q; data null: no gate
  bool head_wise = false;  // gate is [sequences * queries, heads]

  Rows out;                     // [sequences * queries, heads, head_size]
  void* lse = nullptr;          // Real [sequences * queries, heads], may be null
  std::int32_t* k_t = nullptr;  // [sequences * queries], may be null

  // A selection that several layers share: one with an indexer writes the positions that its queries select, the
  // others read them (with its k_t) and do not score. On the CPU what is read is checked; a CUDA device trusts it
  // as it trusts the block table.
  std::int64_t selected_width = 0;       // entries a row: at least min(max_length, budget.max) to write
  std::int32_t* selected_out = nullptr;  // [sequences * queries, selected_width]: ascending, then -1; or null
  const std::int32_t* selected = nullptr;    // the same, to read; index_heads is 0 then
  const std::int32_t* selected_k = nullptr;  // [sequences * queries]: how many of them count; 0 makes NaN
};

// On the CPU, every type; for CUDA devices see decode_cuda.h. A query at a negative position (the sequence is
// shorter than `queries`) gets NaN and k_t = 0. lse is Real: double where the type is f64.
void decode(const DecodeArgs& args, const Parallel& parallel);

// Whether every visible key is attended to.
inline bool is_dense(const DecodeArgs& args) { return args.index_heads == 0 && args.selected == nullptr; }

}  // namespace gsa
