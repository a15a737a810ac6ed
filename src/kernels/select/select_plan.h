// Which way select goes on CUDA, and how its work is cut, from facts alone: no CUDA header, so that choices are
// tested without a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/cuda_context.h"
#include "gsa/tensor_view.h"
#include "kernels/common/host_device.h"
#include "kernels/common/tile_slots.h"
#include "kernels/scores/scores.h"

namespace gsa::cuda {

inline constexpr int kSelectTile = 64;  // queries

// ---- Sizes that the kernels share with their plans

namespace selecting {

// Tiles of 64 queries, numbered over all sequences (common/tile_slots.h): the first begins with its sequence. A
// tile's rows are queries of one sequence; a few tiles are empty.
inline constexpr int kTileQueries = kSelectTile;
inline constexpr int kSpareTiles = 1;

inline constexpr int kWarps = 4;  // of a block: each has 16 queries
inline constexpr int kTileKeys = 64;
inline constexpr int kStages = 3;  // of the ring of keys in shared memory

// Bytes of a row of keys in shared memory.
GSA_DEVICE constexpr int key_pitch(int steps) { return steps * 32 + 16; }
GSA_DEVICE constexpr int key_stage_bytes(int steps) { return kTileKeys * key_pitch(steps); }
// Of the fragments of a block's queries, where they are not in registers.
constexpr int query_bytes(int heads, int steps) { return kWarps * heads * steps * 512; }

inline constexpr int kLists = 4;              // of a query: one for each lane that scores it
inline constexpr float kSampleMargin = 5.0f;  // standard deviations: about one query in 10^6 falls back
inline constexpr int kPassBlocks = 3;         // of a multiprocessor, that run at a time
inline constexpr int kHopperPassBlocks = 2;
// What the pass has in shared memory beside the keys, and what takes the place of the keys in its fallback.
inline constexpr int kPassSharedBytes = 1024, kRowSharedBytes = 16800;

inline constexpr int kSegmentTiles = 16;  // tiles of keys of a segment, whose sums are taken together

}  // namespace selecting

// ---- Stored scores or one pass

struct SelectFacts {
  Device device;
  std::int64_t heads = 0, head_size = 0;  // of the indexer
  bool wide_rows = false;                 // rows of q and k can be read 16 bytes at a time
  bool paired_query = false;              // q can be read two elements at a time
  std::int64_t tiles = 0;                 // of kSelectTile queries
  std::int64_t longest_keys = 0;          // of the longest sequence
  bool lists_fit = false;                 // what one pass collects fits its scratch memory

  int steps() const { return static_cast<int>((head_size + 15) / 16); }  // of 16 dimensions
};

struct SelectConfig {
  // stored:   the scores of a chunk of queries are written out, then each row selects from its own
  // one_pass: scores are never stored; what reaches a bound from a sample is collected
  enum class Way { stored, one_pass };
  Way way = Way::stored;
  bool wgmma = false;      // scores by Hopper's products, else by mma.sync
  std::int64_t tiles = 0;  // of a chunk of stored scores
  const char* why = "";
};

SelectConfig choose_select(const SelectFacts& facts);

// A line to print, such as "stored scores, 1024 tiles at a time, wgmma: rows of at most 32768 keys".
std::string to_string(const SelectConfig& config);

// Whether Hopper's kernels take these scores; the one pass only those of 64.
bool hopper_scores(const SelectFacts& facts);
bool hopper_pass(const SelectFacts& facts);

// ---- Scores that are written out, and masks rebuilt from thresholds

// Which kernel scores, and how a launch of so many tiles of queries, which see up to longest_keys, splits the keys.
struct SelectScoresConfig {
  // four_of_64, four_of_32: the queries of four heads of that size live in registers
  // any_shape:              they lie in shared memory where they fit, else they are read again for every 16 keys
  // wgmma:                  Hopper's products
  enum class Kernel { four_of_64, four_of_32, any_shape, wgmma };
  Kernel kernel = Kernel::any_shape;
  bool query_in_shared = false;
  std::size_t shared_bytes = 0;  // of a block; 0 where the kernel knows
  int split_tiles = 0;           // tiles of keys of a split
  int splits = 0;
};

SelectScoresConfig choose_select_scores(const SelectFacts& facts, int tiles, int longest_keys);
SelectScoresConfig choose_hopper_scores(const SelectFacts& facts, int tiles, int longest_keys);

// A line to print, such as "mma, 24 tiles of keys a block: four heads of 64, queries in registers".
std::string to_string(const SelectScoresConfig& config);

// ---- Rows of stored scores

// Keys of a row that the smallest of the kernels for rows of stored scores takes; others take 2, 4 or 8 times as many.
inline constexpr int kShortRow = 4096;

struct SelectRowsFacts {
  Device device;
  std::int64_t rows = 0;          // of a launch
  std::int64_t longest_keys = 0;  // that one of them sees
};

struct SelectRowsConfig {
  int keys = 0;     // that a kernel which passes over a row once has room for; 0: it takes several passes
  int threads = 0;  // of a row
  const char* why = "";
};

SelectRowsConfig choose_select_rows(const SelectRowsFacts& facts);

// A line to print, such as "single pass, 64 threads: rows of at most 4096 keys".
std::string to_string(const SelectRowsConfig& config);

// Tiles as kernels number them, on the host.
class SelectTiles {
 public:
  explicit SelectTiles(const Sequences& sequences) : sequences_(sequences) {}

  int count() const;
  // The first row, among all queries, that belongs to this tile or a later one.
  std::int64_t first_row(std::int64_t tile) const;
  // The most keys that one of rows first .. end - 1 sees.
  std::int64_t max_visible(std::int64_t first, std::int64_t end) const;

 private:
  const Sequences& sequences_;
};

// Rows first .. end - 1, which see up to max_keys keys.
struct SelectRowsPart {
  std::int64_t first = 0, end = 0;
  std::int64_t max_keys = 0;
};

// Parts of rows first .. end - 1, a launch each. A part ends where rows begin to need another kernel, unless it and
// the rows that follow are too few to fill a device.
std::vector<SelectRowsPart> select_rows_parts(const Sequences& sequences, std::int64_t first,
                                              std::int64_t end);

// Rows of stored scores have room for a multiple of it.
inline constexpr std::int64_t kStoredStep = 64;

// ---- One pass over the keys

// Shared memory of a block of the kernels for any shape and device.
struct PassMemory {
  int ring_bytes = 0;  // of keys
  bool fits = false;   // else scores have to be stored
  bool query_in_registers = false, query_in_shared = false;
  std::size_t bytes = 0;
};

PassMemory pass_memory(const SelectFacts& facts);

// A block takes 64 queries and collects, for each of them, what reaches a lower bound of the threshold that a sample
// of the keys gave.
struct LongPlan {
  int shift = 0;             // one of 1 << shift keys is sampled
  int samples = 0;           // at most, of a query
  int list = 0;              // entries of one of the four lists of a query
  long long slot_bytes = 0;  // of scratch of a tile of queries
  int at_once = 0;           // tiles
  bool wgmma = false;        // sample and pass by Hopper's kernels
  PassMemory memory;         // of the others
};

// at_once is 0 where the scores should be stored instead.
LongPlan plan_long(const SelectFacts& facts, const Budget& budget);

// The tile of a round that a block of Hopper's pass takes, number 0 being the longest. A multiprocessor runs two
// blocks: where the first has one of the longest tiles, the second gets one of the shortest, so that all end alike.
GSA_DEVICE int tile_of_block(int block, int tiles, int multiprocessors) {
  return block < multiprocessors ? block : tiles - 1 - (block - multiprocessors);
}

}  // namespace gsa::cuda
