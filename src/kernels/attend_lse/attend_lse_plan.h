// Which kernel of attend_lse runs, from facts alone: no CUDA header, so that choices are tested without a
// GPU.
#pragma once

#include <cstdint>
#include <string>

#include "core/cuda_context.h"

namespace gsa::cuda {
namespace lse {

constexpr int kQueries = 64;  // of a tile
// Keys whose sums are added up in one go; how they are grouped follows from positions alone.
constexpr int kSplitKeys = 2048;

}  // namespace lse

struct AttendLseFacts {
  Device device;
  std::int64_t heads = 0, head_size = 0;
  bool aligned = false;      // rows of q and k can be read 16 bytes at a time
  std::int64_t tiles = 0;    // of 64 queries that are asked for
  std::int64_t longest = 0;  // keys that one of them sees
};

struct AttendLseConfig {
  enum class Kernel { hopper, generic };
  Kernel kernel = Kernel::generic;
  int splits = 0;              // of the keys
  std::int64_t at_once = 0;    // tiles whose sums are in memory at a time
  std::size_t tile_bytes = 0;  // of the sums of a tile
  const char* why = "";
};

AttendLseConfig choose_attend_lse(const AttendLseFacts& facts);

// A line to print, such as "hopper, up to 16 splits of the keys, 32 tiles at a time: aligned heads of 128".
std::string to_string(const AttendLseConfig& config);

}  // namespace gsa::cuda
