// append: from one product of a layer's input with all matrices that read it, what attention wants, and the
// new tokens' rows into the pages of the cache. One pass over memory instead of a dozen small ones: for a
// decoding step their number is what counts.
//
//   row of x = [q | k | v | index_q | index_k | value_gate | ... | index_w | ...]
//   q, index_q                      rotated (rotary.h)                        -> tensors of their own
//   k, index_k                      rotated                                   -> the cache, row slot[t]
//   v sigmoid(value_gate)           or v where there is no gate               -> the cache, row slot[t]
//   sigmoid(index_w)                or index_w / sqrt(index_heads)            -> a tensor of its own
//
// Every result is rounded to the type where a chain of single operators would round it. Indexer keys may be
// kept in eight bits: scale = max |k| / 127 of the rounded key, value = round(k / scale), ties to even; a key
// of zeros has scale 0, one that is not finite has scale NaN and values 0.
#pragma once

#include <cstdint>

#include "core/parallel.h"
#include "gsa/dtype.h"

namespace gsa {

struct AppendArgs {
  DType dtype = DType::f32;  // of x and of all results; Real below is float, double for f64
  std::int64_t tokens = 0;
  std::int64_t q_heads = 0, kv_heads = 0;
  std::int64_t head_size = 0, pairs = 0;  // pairs: at most head_size / 2
  std::int64_t index_heads = 0;           // 0: no indexer
  std::int64_t index_head_size = 0, index_pairs = 0;
  std::int64_t value_gate = 0;      // columns of the gate: 0, kv_heads, or kv_heads x head_size
  std::int64_t index_w_column = 0;  // where index_w begins
  bool sigmoid_w = true;            // the indexer's weights are sigmoids (GSA); false: scaled (DSA)

  const void* x = nullptr;    // [tokens, x_stride], rows contiguous
  std::int64_t x_stride = 0;  // elements
  const void* cos = nullptr;  // Real [tokens, pairs], like sin
  const void* sin = nullptr;
  const void* index_cos = nullptr;  // Real [tokens, index_pairs]; null where index_pairs is 0, like index_sin
  const void* index_sin = nullptr;
  const std::int64_t* slots = nullptr;  // [tokens]: rows of the cache, each below `rows`
  std::int64_t rows = 0;

  void* k = nullptr;             // [rows, kv_heads, head_size]
  void* v = nullptr;             // [rows, kv_heads, head_size]
  void* index_k = nullptr;       // [rows, index_head_size]: of the type, or int8 where there are scales
  float* index_scale = nullptr;  // [rows], or null
  void* q = nullptr;             // [tokens, q_heads, head_size]
  void* index_q = nullptr;       // [tokens, index_heads, index_head_size]
  void* index_w = nullptr;       // [tokens, index_heads]
};

// A slot out of range is an error here and passed over on a CUDA device, where looking would mean waiting.
void append(const AppendArgs& args, const Parallel& parallel);

}  // namespace gsa
