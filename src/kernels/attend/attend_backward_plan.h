// Which kernel of attend's backward pass runs, and in which order its tiles do, from facts alone: no CUDA
// header, so that choices are tested without a GPU.
#pragma once

#include <cstdint>
#include <string>

#include "core/cuda_context.h"
#include "kernels/attend/attend_cuda.h"

namespace gsa::cuda {

struct AttendBackwardFacts {
  Device device;
  std::int64_t head_size = 0;
  std::int64_t kv_heads = 0;
  std::int64_t group = 0;  // query heads that share a key/value head
  bool masked = false;     // a bit mask, or every visible key
  bool aligned = false;    // rows of every tensor begin at multiples of 16 bytes
  Accumulation accumulation = Accumulation::ordered;
  std::int64_t sequences = 0;
  std::int64_t total_keys = 0;    // of all sequences
  std::int64_t longest_keys = 0;  // of the longest
};

// In which order the tiles are started. The tiles of a sequence and a key/value head form a chain, the last
// tile first: where the order of sums is fixed, a tile adds to a key after the one before it in the chain.
// Tiles of a chain that run at the same time therefore follow each other at the distance of a hand-over, and
// many of them would mostly wait; tiles of different chains have nothing to wait for. So chains run side by
// side, about as many as keep their sums in the L2 cache. Where those of a single sequence do not fit, chains
// take turns in gangs of neighbouring tiles, each of which finds in the cache what the one before it added.
inline constexpr int kMaxTogether = 256;  // sequences whose chains run side by side, at most
struct ChainOrder {
  int heads = 1;     // key/value heads whose chains run side by side, a divisor of all: the rest afterwards
  int together = 1;  // sequences whose chains do
  int gang = 1;      // tiles of a chain that start one after the other
};

struct AttendBackwardConfig {
  enum class Kernel { hopper, generic };
  Kernel kernel = Kernel::generic;
  int tile_queries = 0;  // of the Hopper kernel
  ChainOrder order;
  const char* why = "";
};

AttendBackwardConfig choose_attend_backward(const AttendBackwardFacts& facts);

// A line to print, such as "hopper, tiles of 32 queries, 1 head of 1 sequence at a time: its sums fill the
// L2 cache".
std::string to_string(const AttendBackwardConfig& config);

}  // namespace gsa::cuda
