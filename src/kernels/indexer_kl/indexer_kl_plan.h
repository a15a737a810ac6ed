// How indexer_kl on CUDA cuts its work into chunks whose p fits in scratch memory of bounded size, from facts
// alone: no CUDA header, so that it is tested without a GPU. A call goes through its queries in chunks; a
// chunk is a number of tiles of neighbouring queries, and each tile has a list of entries: every key that its
// last query sees (dense), or the union of its queries' selections (listed).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/cuda_context.h"
#include "kernels/attention/union_plan.h"
#include "kernels/indexer_kl/indexer_kl.h"

namespace gsa::cuda::kl {

constexpr int kDenseQueries = 64;  // of a tile
constexpr int kListQueries = 32;
constexpr int kEntryStep = 256;  // rows of p have room for a multiple of it

// Dense: windows of queries whose part of dk is summed up in one go. A chunk holds a whole one, with p of all
// its keys, so the far ones are smaller: memory then grows with a quarter of the length. How sums are grouped
// follows from positions alone.
constexpr int window_of(int position) {
  constexpr int kFar = 128 * 1024, kNearQueries = 256, kFarQueries = 64;
  return position / (position < kFar ? kNearQueries : kFarQueries);
}

GSA_DEVICE constexpr int tile_queries(bool listed) { return listed ? kListQueries : kDenseQueries; }
// Entries whose sums are added up in one go: few enough that there are blocks for the whole device, enough
// that their sums (dq is large) are not the work.
constexpr int dense_split(bool backward) { return backward ? 1024 : 512; }
// Of lists it is a slot, the unit in which they take memory.
constexpr int kSlot = 512;
// Sizes that kernels are made for; others are padded with zeros to the next one. Of attention's heads, and of
// the indexer's.
GSA_DEVICE constexpr int padded_size(std::int64_t size) { return size <= 64 ? 64 : size <= 128 ? 128 : 256; }
GSA_DEVICE constexpr int padded_index_size(std::int64_t size) { return size <= 32 ? 32 : padded_size(size); }
// The heads of a query whose dq a block of row_gradients can hold.
GSA_DEVICE constexpr int gradient_heads(int padded) { return padded <= 64 ? 4 : 256 / padded; }
// Whether list_gradients takes these heads.
constexpr int kListHeads = 4;
GSA_DEVICE constexpr bool small_heads(int heads, int padded) { return heads <= kListHeads && padded <= 64; }

// Of a block that makes p by mma: rows (queries x heads) of a step, keys, and its shared memory with so many stages
// of rows. It has keys, rows with their log-sum-exp, and the list of the keys.
constexpr int kTargetRows = 64;
GSA_DEVICE constexpr int target_entries(int padded) { return padded == 256 ? 64 : 256; }
GSA_DEVICE constexpr int target_shared_bytes(int padded, int stages) {
  return target_entries(padded) * (padded * 2 + 4) + stages * kTargetRows * (padded * 2 + 4);
}

// ---- which kernels

struct TargetFacts {
  Device device;
  std::int64_t head_size = 0;
  bool aligned = false;             // rows of q and k can be read 16 bytes at a time
  std::int64_t largest_stride = 0;  // between tokens of q and of k
};
// Whether p comes from Hopper's products; null: it does, else why not.
const char* why_not_wgmma(const TargetFacts& facts);
inline bool hopper_target_takes(const TargetFacts& facts) { return why_not_wgmma(facts) == nullptr; }

struct IndexerKlFacts {
  TargetFacts target;
  bool backward = false;
  bool listed = false;  // keys of a mask; else every visible key
  std::int64_t index_heads = 0, index_size = 0;
};

struct IndexerKlConfig {
  bool wgmma = false;     // p by Hopper's products, else by mma.sync
  int target_stages = 0;  // of mma: rows in shared memory
  const char* why_mma = "";
  int index_size = 0;  // of the indexer's heads, padded
  int split = 0;       // dense: entries whose sums are added up in one go
  // Backward.
  int block_heads = 0;    // whose dq a block of row_gradients holds
  bool fused = false;     // of lists: one kernel makes the gradients of queries and of keys
  bool in_place = false;  // one block has all heads: dI is written where p was read
};

IndexerKlConfig choose_indexer_kl(const IndexerKlFacts& facts);

// Such as "p by mma (heads of more than 128), fused gradients: up to four small indexer heads".
std::string to_string(const IndexerKlConfig& config);

// ---- dense chunks: known to the host

// Dense: what adds to dk together: tiles of one sequence whose positions lie in one window, so that sums are
// grouped by positions alone.
struct Part {
  int first_tile = 0, tiles = 0;
  int keys = 0;  // that its last query sees
  int k_begin = 0;
};

// Parts of one sequence within a chunk, in the order in which they are added.
struct Group {
  int first_part = 0, parts = 0;
  int keys = 0;
  int k_begin = 0;
};

// What a dense chunk's scratch memory may take.
constexpr std::size_t kDenseBytes = std::size_t(112) << 20, kSampledBytes = std::size_t(256) << 20;

// Sizes in units of what a dense chunk holds.
struct DenseNeeds {
  int tile_queries = kDenseQueries;
  int split = 0;                // entries of a split
  std::size_t entry_bytes = 0;  // for each entry of a tile
  std::size_t split_bytes = 0;  // for each query and split
  std::size_t part_bytes = 0;   // for each entry of a part
  std::size_t limit = kDenseBytes;

  static std::size_t stride(int entries) {
    return static_cast<std::size_t>((entries + kEntryStep - 1) / kEntryStep) * kEntryStep;
  }
  std::size_t splits(int entries) const { return static_cast<std::size_t>((entries + split - 1) / split); }
  bool fits(int tiles, int parts, int entries) const {
    const std::size_t one = stride(entries) * entry_bytes +
                            static_cast<std::size_t>(tile_queries) * splits(entries) * split_bytes;
    return static_cast<std::size_t>(tiles) * one +
               static_cast<std::size_t>(parts) * stride(entries) * part_bytes <=
           limit;
  }
};

// A dense chunk.
struct DenseRange {
  int first_tile = 0, tiles = 0;
  int entries = 0;
  int first_part = 0, parts = 0;
  int first_group = 0, groups = 0;
};

// The tiles of all sequences, in dense chunks.
struct DensePlan {
  std::vector<UnionTile> tiles;
  std::vector<DenseRange> ranges;
  std::vector<Part> parts;
  std::vector<Group> groups;
  // The most of a chunk: splits and entries of all its queries (with padding), entries of all its parts.
  std::size_t row_splits = 0;
  std::size_t row_entries = 0, part_entries = 0;
};

DensePlan make_dense_plan(const IndexerKlInputs& in, const DenseNeeds& needs);

// ---- chunks of lists, whose lengths the device alone knows (cuda/lists.h)

// What a chunk of queries may take where there is a mask. How many chunks there are changes no bit of a
// result: tests go through many small ones.
struct ListLimits {
  std::size_t bytes = std::size_t(512) << 20;
  std::size_t word_bytes = std::size_t(48) << 20;  // of the words of the unions; backward
  int slots = 0;                                   // instead of bytes, unless 0
  int tiles = 0;                                   // at most, unless 0
};

// Sizes that the host knows.
struct ListSizes {
  int tiles = 0;      // of all sequences
  int slots = 0;      // a chunk has room for
  int max_tiles = 0;  // of a chunk
  int rounds = 0;     // chunks there may be
  int longest = 0;    // slots that a tile may need

  std::size_t rows() const { return static_cast<std::size_t>(slots) * kListQueries; }
  std::size_t entries() const { return static_cast<std::size_t>(slots) * kSlot; }
};

// The entries that the mask's bound allows a tile.
std::int64_t list_bound(const ConstMask& mask);
constexpr std::size_t kListWordBytes = 8;  // of a ListWord

// slot_bytes: what a slot takes in all. words: whether Chunk::word is made.
ListSizes list_sizes(const ConstMask& mask, const Sequences& sequences, std::size_t slot_bytes, bool words,
                     const ListLimits& limits);

// What is printed before the config, such as "lists of 1024 tiles, up to 12 chunks of 8192 slots, ".
std::string describe(const ListSizes& sizes);
std::string describe(const DensePlan& plan);

}  // namespace gsa::cuda::kl
