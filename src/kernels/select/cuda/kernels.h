// What the host side of select on CUDA launches. Everything only enqueues work.
#pragma once

#include <cstdint>

#include "core/cuda_context.h"
#include "kernels/common/device_sequences.h"
#include "kernels/select/select_cuda.h"
#include "kernels/select/select_plan.h"

namespace gsa::cuda::selecting {

// The indexer as kernels get it.
struct ScoreInput {
  const char* op = nullptr;  // that was called: errors name it
  const void* q = nullptr;
  const void* k = nullptr;
  const void* w = nullptr;
  const void* bias = nullptr;
  long long q_token = 0, q_head = 0, k_token = 0, w_token = 0, w_head = 0;  // strides
  int heads = 0;
  int head_size = 0;
  int steps = 0;  // of 16 dimensions
  float scale = 0;
  bool wide_keys = false;     // rows of keys can be read 16 bytes at a time
  bool paired_query = false;  // q can be read two elements at a time
  DeviceSequences sequences;
};

// Of 64 keys in a row eight are in the sample: what one lane has of an mma tile, two of 16.
constexpr int kStoredSample = 8;
GSA_DEVICE constexpr int sample_position(int i) { return i / 8 * 64 + (i % 2 == 0 ? 8 : 41) + i % 8 / 2 * 2; }

// Where scores go: row r of all queries to scores + (r - first_row) * stride.
struct ScoreStore {
  float* scores = nullptr;
  long long stride = 0;
  int first_row = 0;
  bool paired = false;  // rows begin at multiples of 8 bytes
  // Of every row: one score in kStoredSample, and the sums of its segments (scores/moments.cuh). Where the
  // kernel that writes scores leaves them too, it needs the scores of position 0, around which sums are
  // taken: first_scores[row of all queries].
  float* sample = nullptr;
  float2* sums = nullptr;
  int segments = 0;  // of a row
  bool summed = false;
  float* first_scores = nullptr;

  GSA_DEVICE long long sample_stride() const { return stride / kStoredSample; }
};

// A mask from thresholds.
struct MaskStore {
  const float* threshold = nullptr;
  const std::int32_t* tie_cut = nullptr;
  std::uint32_t* words = nullptr;
  long long words_per_query = 0;
};

// What select() returns for each query; any pointer may be null.
struct RowOutputs {
  SelectWork* work = nullptr;  // added to
  std::uint32_t* words = nullptr;
  long long words_per_query = 0;
  std::int32_t* k_t = nullptr;
  float* variance = nullptr;
  float* threshold = nullptr;
  std::int32_t* tie_cut = nullptr;
};

struct ScoreType {
  DType dtype;
  ScoreForm form;
};

ScoreInput input_of(const char* op, const Indexer& indexer, const Sequences& sequences,
                    const Context& context);
// What the plan asks of it; tiles and lists aside.
SelectFacts facts_of(const ScoreInput& in, const Device& device);
// With GSA_PRINT_PLANS.
void print_scores_plan(const ScoreInput& in, ScoreType type, const SelectScoresConfig& config);

// Scores of the queries of tiles first .. first + tiles - 1. longest: a bound of the keys a query sees.
void launch_scores(const ScoreInput& in, ScoreType type, const ScoreStore& out, int first, int tiles,
                   int longest, const Context& context);
void launch_mask(const ScoreInput& in, ScoreType type, const MaskStore& out, int first, int tiles,
                 int longest, const Context& context);

// The same by wgmma, for problems that it takes, with the sums of the rows' segments. Rows of `out` have room
// for a multiple of kStoredStep, and what lies beyond the keys that a query sees is overwritten too. The
// scores of position 0 are there before: launch_hopper_first_scores, of all tiles.
void launch_hopper_first_scores(const ScoreInput& in, ScoreType type, float* first_scores, int tiles,
                                const Context& context);
void launch_hopper_scores(const ScoreInput& in, ScoreType type, const ScoreStore& out, int first, int tiles,
                          int longest, const Context& context);

// -infinity everywhere.
void launch_fill(float* scores, long long count, const Context& context);

// Budget, threshold and mask of rows first .. first + rows - 1 from their stored scores. longest: a bound of
// the keys that they see.
void launch_rows(const DeviceSequences& sequences, const ScoreStore& scores, const Budget& budget,
                 const RowOutputs& out, int first, int rows, int longest, const Context& context);

// Selection in one pass over the keys, scores never stored: for long rows.
void launch_long(const ScoreInput& in, ScoreType type, const Budget& budget, const RowOutputs& out,
                 const LongPlan& plan, int tiles, const Context& context);

}  // namespace gsa::cuda::selecting
