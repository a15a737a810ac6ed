// How decode on CUDA splits its work, from facts alone: no CUDA header, so that choices are tested without a
// GPU.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "core/cuda_context.h"
#include "kernels/common/device_sequences.h"

namespace gsa::cuda {
namespace decoding {

// Keys of a split of a row that attends to `count` keys: from a list, or (dense) to all it sees, where short
// rows want many splits and long ones few. Where a split ends, and with it every rounding, depends on the row
// alone, neither on its batch nor on the device.
GSA_DEVICE constexpr int split_keys(bool dense, int count) {
  if (!dense) return 128;
  return count > 64 * 1024 ? 1024 : count > 16 * 1024 ? 512 : 256;
}
GSA_DEVICE constexpr int splits_of(bool dense, int count) {
  return (count + split_keys(dense, count) - 1) / split_keys(dense, count);
}
// The most that a row of at most `keys` keys has.
inline int max_splits(bool dense, int keys) {
  int max_count = splits_of(dense, keys);
  for (const int longest : {16 * 1024, 64 * 1024}) {
    if (dense && longest < keys) max_count = std::max(max_count, splits_of(dense, longest));
  }
  return max_count;
}

// Blocks that share a row when it selects, where they can form a cluster.
inline constexpr int kHopperCluster = 8;

// Positions of a sequence that a block scores.
inline constexpr int kScoreSegment = 1024;

// Columns of the products for one query: its indexer heads, padded.
constexpr int padded_columns(int heads) { return heads <= 2 ? 2 : heads <= 4 ? 4 : (heads + 7) / 8 * 8; }

inline constexpr int kScoreQueries = 4;  // of a block that scores, at most: their scores lie in shared memory

// Shared memory of a block that scores, in bytes from its start. steps: of 16 dimensions of a key.
struct ScoreLayout {
  int ring = 0, q = 0, columns = 0, start = 0, shift = 0, extremes = 0, scores = 0, bytes = 0;

  // ring_bytes: of the tiles under way, of all warps.
  GSA_DEVICE constexpr ScoreLayout(int steps, int padded_heads, int queries, bool far_queries,
                                   int ring_bytes) {
    const int column_tiles = (queries * padded_heads + 7) / 8;
    q = (ring + ring_bytes + 15) / 16 * 16;
    columns = q + (far_queries ? 0 : column_tiles * steps * 256);
    start = columns + column_tiles * 8 * 8;  // a factor and an offset each
    shift = start + kScoreQueries * 4;
    extremes = shift + kScoreQueries * 4;
    scores = (extremes + kScoreQueries * 8 + 15) / 16 * 16;
    bytes = scores + queries * kScoreSegment * 4;
  }
};

// Of a block that attends: the stages of its ring, keys of a stage, and what lies before the ring.
inline constexpr int kMaxStages = 3, kHeadTile = 16, kAttendFixedBytes = 1152;
GSA_DEVICE constexpr int block_keys(int size) { return size == 256 ? 32 : 64; }

// Its shared memory, in bytes from its start; in a stage: k, v, q (of an item's first stage).
struct AttendLayout {
  int stages = 0, stage = 0, k = 0, v = 0, q = 0, bytes = 0;

  GSA_DEVICE constexpr AttendLayout(int size, int stage_count) {
    const int tile = block_keys(size) * size * 2;
    stages = kAttendFixedBytes;
    v = tile;
    q = 2 * tile;
    stage = 2 * tile + kHeadTile * size * 2;
    bytes = stages + stage_count * stage;
  }
};

}  // namespace decoding

struct DecodeFacts {
  Device device;
  bool dense = false;   // no indexer: every key counts
  bool shared = false;  // another layer has selected
  std::int64_t max_length = 0;
  std::int64_t max_selected = 0;  // of the budget, or of what another layer has left
  std::int64_t head_size = 0;
  bool aligned = false;  // rows of q, k and v can be read 16 bytes at a time

  // Of the indexer; heads is 0 where there is none, or another layer has selected.
  std::int64_t sequences = 0, queries = 1;  // of a sequence
  std::int64_t index_heads = 0;
  std::int64_t index_size = 0;  // of a key
  bool index_bytes = false;     // keys of 8 bits
  bool index_aligned = false;   // they, and their scales, can be read 16 bytes at a time
};

// Which kernel scores. Keys of 64 dimensions and four heads are what models have; other shapes share fewer kernels.
enum class DecodeScores {
  none,
  wide,  // keys of up to 64, four heads (or three): large blocks, where there are too few to fill the device
  narrow,     // the same in small blocks
  any_heads,  // keys of up to 64
  keys_128,   // keys of up to 128
  keys_256,
  unaligned,  // keys of up to 256, an element at a time
};

// How a block of these kernels is made: more warps and stages load more at once, smaller blocks start and end more
// evenly. No bit depends on it.
struct DecodeScoreShape {
  int steps = 0;    // of 16 dimensions of a key
  int columns = 0;  // of a query where they are known when compiling, else 0
  int warps = 0, stages = 0;
  int blocks = 0;  // of a multiprocessor
};
// bytes: keys of 8 bits, twice as many at a time. No warps: there is no such kernel.
constexpr DecodeScoreShape score_shape(DecodeScores scores, bool bytes) {
  switch (scores) {
    case DecodeScores::wide:
      return {.steps = 4, .columns = 4, .warps = 16, .stages = bytes ? 4 : 2, .blocks = 2};
    case DecodeScores::narrow:
      return {.steps = 4, .columns = 4, .warps = 4, .stages = bytes ? 4 : 2, .blocks = 8};
    case DecodeScores::any_heads:
      return bytes ? DecodeScoreShape() : DecodeScoreShape{.steps = 4, .warps = 4, .stages = 2, .blocks = 8};
    case DecodeScores::keys_128:
      return bytes ? DecodeScoreShape() : DecodeScoreShape{.steps = 8, .warps = 8, .stages = 2, .blocks = 1};
    case DecodeScores::keys_256:
      return {.steps = 16, .warps = 8, .stages = bytes ? 2 : 1, .blocks = 1};
    case DecodeScores::unaligned:
      return {.steps = 16, .warps = 8, .stages = 1, .blocks = 1};
    case DecodeScores::none:
      break;
  }
  return {};
}

struct DecodeConfig {
  bool dense = false;
  bool shared = false;
  std::int64_t keys = 0;  // that a query attends to, at most
  int splits = 0;         // of them, at most
  const char* why_splits = "";
  int padded_size = 0;  // of a head, as products see it
  const char* why_padded = "";
  int stages = 0;       // of the ring of a block that attends
  int pick_blocks = 0;  // that share a row when it selects
  const char* why_pick = "";
  DecodeScores scores = DecodeScores::none;
  int score_queries = 0;        // of a block that scores
  bool far_queries = false;     // they are too many for shared memory: read again for every tile of keys
  std::size_t score_bytes = 0;  // of shared memory
};

DecodeConfig choose_decode(const DecodeFacts& facts);

// A line to print, such as "up to 16 splits of 128 keys from a list (128 at any length), heads as 128 (65 to 128), 3
// stages, 8 blocks select (a cluster on Hopper), scores in large blocks: four heads of up to 64, few segments".
std::string to_string(const DecodeConfig& config);

}  // namespace gsa::cuda
