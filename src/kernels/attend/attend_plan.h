// Which kernel of attend runs, from facts alone: no CUDA header, so that choices are tested without a GPU.
#pragma once

#include <cstdint>
#include <string>

#include "core/cuda_context.h"
#include "gsa/dtype.h"

namespace gsa::cuda {

constexpr int kAttendBlockKeys = 64;

struct AttendFacts {
  Device device;
  DType dtype = DType::bf16;
  std::int64_t head_size = 0;
  std::int64_t group = 0;         // query heads that share a key/value head
  bool masked = false;            // a bit mask, or every visible key
  std::int64_t max_selected = 0;  // as in ConstMask
  std::int64_t longest_keys = 0;  // of the longest sequence
  bool aligned = false;           // rows of q, k, v and out begin at multiples of 16 bytes
};

struct AttendStages {
  int k = 0, v = 0;  // blocks of keys, and of values, in shared memory
};

struct AttendConfig {
  enum class Kernel { hopper, generic };
  Kernel kernel = Kernel::generic;
  // Of the Hopper kernel.
  int rows = 0;  // of a tile: queries x heads of a group
  int tile_queries = 0;
  int block_keys = 0;
  AttendStages stages;
  std::size_t shared_memory = 0;  // bytes a block of threads takes
  int threads = 0;
  const char* why = "";
};

// Throws gsa::Error where no kernel serves.
AttendConfig choose_attend(const AttendFacts& facts);

// A line to print, such as "hopper, 64 rows (16 queries), blocks of 64 keys, 4 + 3 stages, 113 KB, 256
// threads: a mask, few of the keys".
std::string to_string(const AttendConfig& config);

// What the Hopper kernel is compiled with: two blocks of threads share a multiprocessor at 64 rows, one has
// it alone at 128. Keys are released before values, so a stage more of them is of use.
constexpr AttendStages attend_stages(int head_size, int rows) {
  if (rows == 64) return head_size == 128 ? AttendStages{4, 3} : AttendStages{7, 6};
  return head_size == 128 ? AttendStages{7, 6} : AttendStages{8, 8};
}
// For each stage: a block of keys or values and two barriers; for values also two words of flags.
constexpr std::size_t attend_shared_memory(int head_size, int rows) {
  const AttendStages stages = attend_stages(head_size, rows);
  const int bytes = (stages.k + stages.v) * (kAttendBlockKeys * head_size * 2 + 2 * 8) + stages.v * 8;
  return static_cast<std::size_t>((bytes + 1023) / 1024 * 1024);
}

}  // namespace gsa::cuda
