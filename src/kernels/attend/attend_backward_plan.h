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
  std::int64_t total_keys = 0;     // of all sequences
  std::int64_t longest_keys = 0;   // of the longest
  std::size_t generic_shared = 0;  // bytes that a block of the generic kernel takes with 8 warps
};

// The tile scheduler: in which order the tiles are started. The tiles of a sequence and a key/value head form
// a queue, the last tile first: with deterministic accumulation a tile waits, by a semaphore, for the one
// before it in the queue. Tiles of a queue that run at the same time therefore follow each other at the
// distance of a hand-over, and many of them would mostly wait; tiles of different queues have nothing to wait
// for. So queues run side by side, about as many as keep their sums in the L2 cache. Where those of a single
// sequence do not fit, queues advance in groups of neighbouring tiles, each of which finds in the cache what
// the one before it added.
inline constexpr int kMaxScheduledSequences = 256;  // whose queues run side by side
struct TileSchedule {
  int heads = 1;      // key/value heads whose queues run side by side, a divisor of all: the rest afterwards
  int sequences = 1;  // whose queues do
  int group_tiles = 1;  // of a group: tiles of a queue that start one after the other
};

struct AttendBackwardConfig {
  enum class Kernel { hopper, generic };
  Kernel kernel = Kernel::generic;
  int tile_queries = 0;  // of the Hopper kernel
  int warps = 0;         // of the generic kernel; each has 16 rows of a tile
  TileSchedule schedule;
  const char* why = "";
};

AttendBackwardConfig choose_attend_backward(const AttendBackwardFacts& facts);

// A line to print, such as "hopper, tiles of 32 queries, 1 head of 1 sequence at a time: its sums fill the
// L2 cache".
std::string to_string(const AttendBackwardConfig& config);

}  // namespace gsa::cuda
