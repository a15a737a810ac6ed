// Which way select goes on CUDA, from facts alone: no CUDA header, so that choices are tested without a GPU.
#pragma once

#include <cstdint>
#include <string>

#include "core/cuda_context.h"
#include "kernels/common/host_device.h"

namespace gsa::cuda {

inline constexpr int kSelectTile = 64;  // queries

struct SelectFacts {
  Device device;
  std::int64_t heads = 0, head_size = 0;  // of the indexer
  bool wide_rows = false;                 // rows of q and k can be read 16 bytes at a time
  std::int64_t tiles = 0;                 // of kSelectTile queries
  std::int64_t longest_keys = 0;          // of the longest sequence
  bool lists_fit = false;                 // what one pass collects fits its scratch memory
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

// Keys of a row that the smallest of the kernels for rows of stored scores takes; others take 2, 4 or 8 times as many.
inline constexpr int kShortRow = 4096;

struct SelectRowsFacts {
  Device device;
  std::int64_t rows = 0;          // of a launch
  std::int64_t longest_keys = 0;  // that one of them sees
};

struct SelectRowsConfig {
  int keys = 0;     // that a kernel which walks over a row once has room for; 0: it is read again and again
  int threads = 0;  // of a row
  const char* why = "";
};

SelectRowsConfig choose_select_rows(const SelectRowsFacts& facts);

// A line to print, such as "walked once by 64 threads: rows of at most 4096 keys".
std::string to_string(const SelectRowsConfig& config);

// The tile of a round that a block of Hopper's pass takes, number 0 being the longest. A multiprocessor runs two
// blocks: where the first has one of the longest tiles, the second gets one of the shortest, so that all end alike.
GSA_DEVICE int tile_of_block(int block, int tiles, int multiprocessors) {
  return block < multiprocessors ? block : tiles - 1 - (block - multiprocessors);
}

// Rows of stored scores have room for a multiple of it.
inline constexpr std::int64_t kStoredStep = 64;

}  // namespace gsa::cuda
