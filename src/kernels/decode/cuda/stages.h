// The stages of decode on CUDA devices and what they hand to each other.
//
//   score   scores of every query against every key it sees, sums and extremes of each segment of positions
//   pick    k_t, the k_t highest scores, the list of where their keys lie, in ascending order of positions
//   attend  attention over splits of the list (of all visible keys in a dense model)
//   combine combines the splits, gates and writes
//
// A row is a query of a sequence: row = sequence * queries + query. Where another layer has selected, or nobody
// does, the first two stages do not run.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "core/cuda_context.h"
#include "kernels/common/device_sequences.h"
#include "kernels/decode/decode_cuda.h"
#include "kernels/decode/decode_plan.h"

namespace gsa::cuda::decoding {

// What the score stage leaves of a segment of kMomentSegment positions (scores/moments.cuh).
struct alignas(16) SegmentRecord {
  float sum;
  float square;
  std::uint32_t low;  // order_of() the lowest and the highest visible score
  std::uint32_t high;
};

// Where a key lies in the cache.
struct alignas(8) KeyPlace {
  int page;
  int row;
};

// Lengths and pages as kernels see them.
struct Cache {
  const std::int32_t* block_table;
  const std::int32_t* length;
  std::int64_t blocks;
  int page_shift;
  int queries;     // a sequence
  int max_length;  // a sequence that claims to be longer counts as having no keys: its rows become NaN
};

struct Scratch {
  float* scores = nullptr;  // [rows, score_stride]
  std::int64_t score_stride = 0;
  SegmentRecord* segments = nullptr;  // [rows, segment_stride]
  int segment_stride = 0;
  KeyPlace* list = nullptr;  // [rows, list_stride]
  int list_stride = 0;
  int* selected = nullptr;      // [rows]: entries of the list
  float* part_out = nullptr;    // [rows, heads, splits, padded head size]: before division
  float2* part_sums = nullptr;  // [rows, heads, splits]: maximum (base 2) and sum
  int splits = 0;
  int padded_size = 0;  // of a head, in part_out
};

// What a row attends to: every key it sees (dense), the first keys of pick's list, or those at the first of the
// positions that a call for another layer has left.
struct Kept {
  bool dense = false;
  const std::int32_t* counts = nullptr;  // [rows]: keys of a row; null where dense
  int max_count = 0;                     // what scratch memory has splits for
  const KeyPlace* list = nullptr;        // [rows, list_stride]
  int list_stride = 0;
  const std::int32_t* positions = nullptr;  // [rows, position_stride]
  int position_stride = 0;
};

Cache cache_of(const DecodeArgs& args);
Kept kept_of(const DecodeArgs& args, const Scratch& scratch);

// Whether rows of q, k and v can be read 16 bytes at a time; whether the indexer's keys, and their scales, can.
bool rows_aligned(const DecodeArgs& args);
bool index_keys_aligned(const DecodeArgs& args);

void score(const DecodeArgs& args, const DecodeConfig& config, const Scratch& scratch,
           const Context& context);
void pick(const DecodeArgs& args, const Scratch& scratch, int blocks, const Context& context,
          DecodeWork* work);
void attend(const DecodeArgs& args, const DecodeConfig& config, const Scratch& scratch,
            const Context& context);
void combine(const DecodeArgs& args, const Scratch& scratch, const Context& context);

}  // namespace gsa::cuda::decoding
