// decode: the newest one or few queries of each sequence against a paged cache, in one call: score, select,
// attend, gate.
//
// The mathematics is that of select, attend and gate; what differs is where keys lie and that all lengths
// live in memory the kernels read, so that a captured CUDA graph replays with other lengths and pages.
//
//   position s of sequence n lies in page block_table[n, s / page_size], row s % page_size
//   query i of sequence n stands at position length[n] - queries + i and sees positions 0 .. that
#pragma once

#include <cstdint>

#include "gsa/dtype.h"
#include "gsa/tensor_view.h"
#include "kernels/attend/attend.h"
#include "kernels/select/select.h"

namespace gsa {

// One page is [page_size, heads, size] with these strides (in elements); the last dimension is contiguous.
struct ConstPages {
  const void* data = nullptr;
  std::int64_t page_stride = 0;
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;
};

struct PageTable {
  std::int64_t page_size = 0;                 // positions a page: a power of two, 8 .. 1024
  const std::int32_t* block_table = nullptr;  // [sequences, blocks]: entries beyond the length are not read
  std::int64_t blocks = 0;                    // entries a row; row stride
  const std::int32_t* length = nullptr;       // [sequences]: keys in the cache, those of the queries included
};

struct DecodeArgs {
  AttendShape shape;
  std::int64_t sequences = 0;
  std::int64_t queries = 1;  // a sequence: 1 .. 16

  ConstRows q;  // [sequences * queries, heads, head_size]
  ConstPages k;
  ConstPages v;

  std::int64_t index_heads = 0;  // 0: no indexer, every visible key (a dense model)
  std::int64_t index_head_size = 0;
  ConstRows index_q;  // [sequences * queries, index_heads, index_head_size]
  ConstRows index_w;  // [sequences * queries, index_heads]
  ConstPages index_k;
  const void* index_bias = nullptr;  // [index_heads], or null for zeros
  double index_scale = 1;
  ScoreForm form = ScoreForm::sigmoid;
  Budget budget;

  PageTable pages;
  std::int64_t max_length =
      0;  // bound of length: sizes scratch and grids, so that a graph holds for all lengths

  ConstRows gate;          // as q; data null: no gate
  bool head_wise = false;  // gate is [sequences * queries, heads]

  Rows out;                     // [sequences * queries, heads, head_size]
  void* lse = nullptr;          // float [sequences * queries, heads], may be null
  std::int32_t* k_t = nullptr;  // [sequences * queries], may be null
};

}  // namespace gsa
