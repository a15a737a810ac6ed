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
  int most = splits_of(dense, keys);
  for (const int longest : {16 * 1024, 64 * 1024}) {
    if (dense && longest < keys) most = std::max(most, splits_of(dense, longest));
  }
  return most;
}

// Blocks that share a row when it selects, where they can form a cluster.
inline constexpr int kHopperCluster = 8;

// Positions of a sequence that a block scores.
inline constexpr int kScoreSegment = 1024;

// Columns of the products for one query: its indexer heads, padded.
constexpr int padded_columns(int heads) { return heads <= 2 ? 2 : heads <= 4 ? 4 : (heads + 7) / 8 * 8; }

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
  std::int64_t sequences = 0;
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

struct DecodeConfig {
  bool dense = false;
  bool shared = false;
  std::int64_t keys = 0;  // that a query attends to, at most
  int splits = 0;         // of them, at most
  int padded_size = 0;    // of a head, as products see it
  int pick_blocks = 0;    // that share a row when it selects
  DecodeScores scores = DecodeScores::none;
};

DecodeConfig choose_decode(const DecodeFacts& facts);

// A line to print, such as "up to 16 splits of 128 keys from a list, heads as 128, 8 blocks select, scores in large
// blocks: four heads of up to 64, few segments".
std::string to_string(const DecodeConfig& config);

}  // namespace gsa::cuda
