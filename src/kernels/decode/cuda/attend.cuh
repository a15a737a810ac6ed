// The attend stage: splits of the lists of keys, for tiles of up to 16 heads that share a key/value head.
//
// A block takes items (split, row, tile of heads) one after another. Two warps only load: one keys, one
// values, gathered row by row into a ring in shared memory, as far ahead of the arithmetic as the ring allows
// and across items, so that memory never waits for arithmetic. The other four warps compute, each for itself:
// heads are the rows of the matrix products, and of every 64 keys a warp takes 16, with a maximum and sums of
// its own, so that a stage of the ring is free again soon. At the end of an item the four are put together,
// in their order. What an item leaves (maximum, sum, sum of values) goes to scratch memory, and a second
// kernel combines the splits in the order of the list, gates and writes.
#pragma once

#include "kernels/common/barrier.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/decode/cuda/device.cuh"

namespace gsa::cuda::decoding {

inline constexpr int kComputeWarps = 4;
inline constexpr int kComputeThreads = kComputeWarps * 32;
inline constexpr int kAttendThreads = kComputeThreads + 2 * 32;

// Warps that have keys of a stage, and a row of what they leave, padded so that rows lie in different banks.
__host__ __device__ constexpr int busy_warps(int size) { return block_keys(size) / 16; }
__host__ __device__ constexpr int result_row(int size) { return size + 8; }

struct AttendParams {
  Cache cache;
  const void* q;
  std::int64_t q_token_stride, q_head_stride;
  const void* k;
  std::int64_t k_page_stride, k_token_stride, k_head_stride;
  const void* v;
  std::int64_t v_page_stride, v_token_stride, v_head_stride;
  std::int32_t* k_t;  // null where pick has written it
  int heads, kv_heads, head_size;
  int head_tiles;  // of a key/value head
  int rows;
  int items;
  int stages;   // of the ring
  float scale;  // times log2(e)
  Kept kept;
  Scratch scratch;
};

// What an item is.
struct Item {
  int row, kv_head, split;
  int first_head, heads;

  // Key/value heads of one split are neighbours, so that what lies together in memory is read together; the
  // splits that few rows need come last.
  __device__ __forceinline__ Item(const AttendParams& p, int index) {
    const int places = p.kv_heads * p.head_tiles, place = index % places;
    const int group = p.heads / p.kv_heads;
    row = index / places % p.rows;
    split = index / places / p.rows;
    kv_head = place / p.head_tiles;
    first_head = kv_head * group + place % p.head_tiles * kHeadTile;
    heads = min(kHeadTile, (kv_head + 1) * group - first_head);
  }
};

// What a stage of the ring holds.
struct StageInfo {
  int keys;           // in this stage; 0: no more
  bool first, last;   // of the item
  int heads;          // of the item
  std::int64_t part;  // where the item's first head and this split lie among the parts
};

struct AttendShared {
  std::uint64_t full[kMaxStages], empty[kMaxStages];
  StageInfo info[kMaxStages];
  // Of an item and the one before it, by warp.
  float maxima[2][kComputeWarps][kHeadTile];
  float sums[2][kComputeWarps][kHeadTile];
};

static_assert((sizeof(AttendShared) + 127) / 128 * 128 == kAttendFixedBytes);

// Where 16-byte chunk `chunk` of row `row` lies in a tile of rows of `size` elements.
template <int size>
__device__ __forceinline__ int chunk_at(int row, int chunk) {
  return row * size * 2 + ((chunk ^ (row & 7)) << 4);
}

// 16 bytes into shared memory, of which `elements` are read and the rest is zero. aligned: with one copy.
template <typename T, bool aligned>
__device__ __forceinline__ void copy_chunk(char* to, const T* from, int elements, const void* anything) {
  if constexpr (aligned) {
    cp_async_16(shared_address(to), elements > 0 ? from : anything, elements > 0);
  } else {
#pragma unroll 1
    for (int e = 0; e < 8; ++e) {
      reinterpret_cast<T*>(to)[e] = e < elements ? from[e] : from_float<T>(0.0f);
    }
  }
}

// One of the two warps that load. values: v instead of k. Only the warp of keys loads q and tells what a
// stage holds.
template <typename T, int size, bool aligned, bool values>
__device__ __forceinline__ void load_items(const AttendParams& p, char* shared) {
  constexpr int kBlockKeys = block_keys(size);
  constexpr int kHeld = (kBlockKeys + 31) / 32;  // keys of a stage that a lane looks up
  constexpr int kChunks = size / 8;
  constexpr int kRows = 32 / kChunks;  // rows that the warp loads at once
  const AttendLayout layout(size, p.stages);
  AttendShared& fixed = *reinterpret_cast<AttendShared*>(shared);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int chunk = lane % kChunks;
  const int elements = min(8, p.head_size - chunk * 8);  // of a row, in this lane's chunk
  const std::int64_t page_stride = values ? p.v_page_stride : p.k_page_stride;
  const std::int64_t token_stride = values ? p.v_token_stride : p.k_token_stride;
  const T* const data = static_cast<const T*>(values ? p.v : p.k) + chunk * 8;
  int stage = 0, phase = 0;
  const auto next_stage = [&] {
    if (++stage == p.stages) {
      stage = 0;
      phase ^= 1;
    }
  };
  const auto wait_for_room = [&] { barrier_wait(&fixed.empty[stage], phase ^ 1); };
  const auto publish = [&](const StageInfo& info) {
    if constexpr (!values) {
      if (lane == 0) fixed.info[stage] = info;
    }
    barrier_arrive_after_copies(&fixed.full[stage]);
    __syncwarp();
    if (lane == 0) barrier_arrive(&fixed.full[stage]);
    next_stage();
  };

  // The lanes look at 32 items at once: an item that its row has no keys for costs nothing.
#pragma unroll 1
  for (int begin = static_cast<int>(blockIdx.x); begin < p.items; begin += 32 * static_cast<int>(gridDim.x)) {
    const int looked_at = begin + lane * static_cast<int>(gridDim.x);
    int lane_count = 0;
    bool wanted = false;
    if (looked_at < p.items) {
      const Item item(p, looked_at);
      lane_count = count_of(p.kept, p.cache, item.row);
      wanted = item.split * split_keys(p.kept.dense, lane_count) < lane_count;
      if (!values && p.k_t != nullptr && item.split == 0 && item.first_head == 0) {
        p.k_t[item.row] = lane_count;
      }
    }
#pragma unroll 1
    for (unsigned left = __ballot_sync(0xffffffffu, wanted); left != 0; left &= left - 1) {
      const int owner = __ffs(static_cast<int>(left)) - 1;
      const Item item(p, begin + owner * static_cast<int>(gridDim.x));
      const std::int64_t part =
          (static_cast<std::int64_t>(item.row) * p.heads + item.first_head) * p.scratch.splits + item.split;
      const int count = __shfl_sync(0xffffffffu, lane_count, owner);
      const int split_size = split_keys(p.kept.dense, count);
      const int first = item.split * split_size;
      const int keys = min(split_size, count - first);
      const int n = item.row / p.cache.queries;
      const T* const head_data = data + item.kv_head * (values ? p.v_head_stride : p.k_head_stride);
#pragma unroll 1
      for (int at = 0; at < keys; at += kBlockKeys) {
        std::int64_t offset[kHeld];
#pragma unroll
        for (int h = 0; h < kHeld; ++h) {
          const int key = at + h * 32 + lane;
          KeyPlace place = {0, 0};
          if (key < keys && p.kept.list != nullptr) {
            place = p.kept.list[static_cast<std::int64_t>(item.row) * p.kept.list_stride + first + key];
          } else if (key < keys) {
            int position = first + key;
            if (!p.kept.dense) {
              position =
                  p.kept.positions[static_cast<std::int64_t>(item.row) * p.kept.position_stride + position];
            }
            place.page = p.cache.block_table[n * p.cache.blocks + (position >> p.cache.page_shift)];
            place.row = position & ((1 << p.cache.page_shift) - 1);
          }
          offset[h] = place.page * page_stride + place.row * token_stride;
        }
        wait_for_room();
        char* const to = shared + layout.stages + stage * layout.stage;
        if (!values && at == 0) {
          const T* const q = static_cast<const T*>(p.q) + item.row * p.q_token_stride +
                             item.first_head * p.q_head_stride + chunk * 8;
#pragma unroll 1
          for (int head = lane / kChunks; head < kHeadTile; head += kRows) {
            copy_chunk<T, aligned>(to + layout.q + chunk_at<size>(head, chunk), q + head * p.q_head_stride,
                                   head < item.heads ? elements : 0, p.q);
          }
        }
        char* const tile = to + (values ? layout.v : layout.k);
#pragma unroll
        for (int h = 0; h < kHeld; ++h) {
          constexpr int kHere = kBlockKeys < 32 ? kBlockKeys : 32;
#pragma unroll 8
          for (int r = 0; r < kHere; r += kRows) {
            const int key = r + lane / kChunks;
            const std::int64_t from = __shfl_sync(0xffffffffu, offset[h], key);
            copy_chunk<T, aligned>(tile + chunk_at<size>(h * 32 + key, chunk), head_data + from,
                                   at + h * 32 + key < keys ? elements : 0, p.k);
          }
        }
        publish({min(kBlockKeys, keys - at), at == 0, at + kBlockKeys >= keys, item.heads, part});
      }
    }
  }
  wait_for_room();
  publish({0, false, false, 0, 0});
}

// What a warp has of an item so far: of rows (heads) lane / 4 and lane / 4 + 8.
template <int size>
struct WarpResult {
  static constexpr int kPairs = size / 16;  // of 16 dimensions

  float out[kPairs][2][4];
  float maximum[2];
  float sum[2];  // of this lane's keys

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kPairs * 8; ++i) out[i / 8][i / 4 % 2][i % 4] = 0.0f;
    maximum[0] = maximum[1] = -INFINITY;
    sum[0] = sum[1] = 0.0f;
  }

  // 16 keys more, of which the first `left` exist; k, v: rows of the tiles, from the first of the keys on.
  template <typename T>
  __device__ __forceinline__ void add(const std::uint32_t (&q)[size / 16][4], const char* k, const char* v,
                                      int left, float scale) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    float s[2][4] = {};
#pragma unroll
    for (int step = 0; step < size / 16; ++step) {
      std::uint32_t b[4];
      const int key = lane / 16 * 8 + lane % 8;
      ldmatrix_x4(b, shared_address(k + chunk_at<size>(key, 2 * step + lane / 8 % 2)));
      mma_16x8x16<T>(s[0], q[step], b[0], b[1]);
      mma_16x8x16<T>(s[1], q[step], b[2], b[3]);
    }
    float top[2] = {maximum[0], maximum[1]};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int key = i / 4 * 8 + lane % 4 * 2 + i % 2, r = i % 4 / 2;
      if (key < left) top[r] = fmaxf(top[r], s[i / 4][i % 4] * scale);
    }
    float base[2], shrink[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      top[r] = fmaxf(top[r], __shfl_xor_sync(0xffffffffu, top[r], 1));
      top[r] = fmaxf(top[r], __shfl_xor_sync(0xffffffffu, top[r], 2));
      base[r] = top[r] == -INFINITY ? 0.0f : top[r];  // no finite logit so far
      shrink[r] = exp2f(maximum[r] - base[r]);
      maximum[r] = top[r];
      sum[r] *= shrink[r];
    }
    float weight[2][4];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int key = i / 4 * 8 + lane % 4 * 2 + i % 2, r = i % 4 / 2;
      weight[i / 4][i % 4] = key < left ? exp2f(fmaf(s[i / 4][i % 4], scale, -base[r])) : 0.0f;
      sum[r] += weight[i / 4][i % 4];
    }
    // What the first product leaves in a lane is what the second one takes.
    const std::uint32_t a[4] = {pack<T>(weight[0][0], weight[0][1]), pack<T>(weight[0][2], weight[0][3]),
                                pack<T>(weight[1][0], weight[1][1]), pack<T>(weight[1][2], weight[1][3])};
    if (__any_sync(0xffffffffu, shrink[0] != 1.0f || shrink[1] != 1.0f)) {
#pragma unroll
      for (int i = 0; i < kPairs * 8; ++i) out[i / 8][i / 4 % 2][i % 4] *= shrink[i % 4 / 2];
    }
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      std::uint32_t b[4];
      ldmatrix_x4_trans(b, shared_address(v + chunk_at<size>(lane % 16, pair * 2 + lane / 16)));
      mma_16x8x16<T>(out[pair][0], a, b[0], b[1]);
      mma_16x8x16<T>(out[pair][1], a, b[2], b[3]);
    }
  }
};

// Puts the results of the warps together and writes them to scratch memory. room: of the item's last stage,
// which nobody needs any more after the first barrier. parity: of the item, in the order of this block.
template <int size>
__device__ __forceinline__ void write_item(const AttendParams& p, AttendShared& fixed,
                                           WarpResult<size>& result, const StageInfo& info, int parity,
                                           float* room) {
  constexpr int kWarps = busy_warps(size), kRow = result_row(size);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    result.sum[r] += __shfl_xor_sync(0xffffffffu, result.sum[r], 1);
    result.sum[r] += __shfl_xor_sync(0xffffffffu, result.sum[r], 2);
    if (lane % 4 == 0) {
      fixed.maxima[parity][warp][r * 8 + lane / 4] = result.maximum[r];
      fixed.sums[parity][warp][r * 8 + lane / 4] = result.sum[r];
    }
  }
  named_barrier(1, kComputeThreads);
  // Factors of the warps, for the maximum of all of them.
  const auto maximum_of = [&](int head) {
    float top = fixed.maxima[parity][0][head];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) top = fmaxf(top, fixed.maxima[parity][w][head]);
    return top;
  };
  const auto factor_of = [&](int w, int head, float top) {
    return exp2f(fixed.maxima[parity][w][head] - (top == -INFINITY ? 0.0f : top));
  };
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int head = r * 8 + lane / 4;
    if (head >= info.heads || warp >= kWarps) continue;
    const float factor = factor_of(warp, head, maximum_of(head));
#pragma unroll
    for (int i = 0; i < size / 8; ++i) {
      *reinterpret_cast<float2*>(room + (warp * kHeadTile + head) * kRow + i * 8 + lane % 4 * 2) = {
          factor * result.out[i / 2][i % 2][2 * r], factor * result.out[i / 2][i % 2][2 * r + 1]};
    }
  }
  named_barrier(1, kComputeThreads);
#pragma unroll 1
  for (int i = thread * 4; i < info.heads * size; i += kComputeThreads * 4) {
    const int head = i / size, d = i % size;
    float4 total = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float4 part = *reinterpret_cast<const float4*>(room + (w * kHeadTile + head) * kRow + d);
      total = {total.x + part.x, total.y + part.y, total.z + part.z, total.w + part.w};
    }
    const std::int64_t part = info.part + static_cast<std::int64_t>(head) * p.scratch.splits;
    *reinterpret_cast<float4*>(p.scratch.part_out + part * size + d) = total;
  }
  if (thread < info.heads) {
    const float top = maximum_of(thread);
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      total = fmaf(fixed.sums[parity][w][thread], factor_of(w, thread, top), total);
    }
    p.scratch.part_sums[info.part + static_cast<std::int64_t>(thread) * p.scratch.splits] = {top, total};
  }
}

// The four warps that compute.
template <typename T, int size>
__device__ __forceinline__ void compute_items(const AttendParams& p, char* shared) {
  const AttendLayout layout(size, p.stages);
  AttendShared& fixed = *reinterpret_cast<AttendShared*>(shared);
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  std::uint32_t q[size / 16][4];
  WarpResult<size> result;
  int stage = 0, phase = 0, parity = 0;
#pragma unroll 1
  while (true) {
    barrier_wait(&fixed.full[stage], phase);
    const StageInfo info = fixed.info[stage];
    if (info.keys == 0) break;
    char* const tiles = shared + layout.stages + stage * layout.stage;
    if (info.first) {
#pragma unroll
      for (int step = 0; step < size / 16; ++step) {
        const int at = chunk_at<size>(lane % 16, 2 * step + lane / 16);
        ldmatrix_x4(q[step], shared_address(tiles + layout.q + at));
      }
      result.clear();
    }
    if (warp * 16 < info.keys) {
      const int begin = warp * 16 * size * 2;  // of the warp's rows
      result.template add<T>(q, tiles + layout.k + begin, tiles + layout.v + begin, info.keys - warp * 16,
                             p.scale);
    }
    if (info.last) {
      write_item<size>(p, fixed, result, info, parity, reinterpret_cast<float*>(tiles));
      parity ^= 1;
    }
    barrier_arrive(&fixed.empty[stage]);
    if (++stage == p.stages) {
      stage = 0;
      phase ^= 1;
    }
  }
}

template <typename T, int size, bool aligned>
__global__ void __launch_bounds__(kAttendThreads, size == 256 ? 1 : 2) attend_kernel(const AttendParams p) {
  extern __shared__ __align__(128) char shared[];
  AttendShared& fixed = *reinterpret_cast<AttendShared*>(shared);
  if (threadIdx.x == 0) {
#pragma unroll
    for (int stage = 0; stage < kMaxStages; ++stage) {
      barrier_init(&fixed.full[stage], 2 * (32 + 1));
      barrier_init(&fixed.empty[stage], kComputeThreads);
    }
  }
  __syncthreads();
  if (threadIdx.x < kComputeThreads) {
    compute_items<T, size>(p, shared);
    return;
  }
  wait_for_previous();
  let_next_start();  // only now: the next kernel may read what those before this one wrote
  if (threadIdx.x < kComputeThreads + 32) {
    load_items<T, size, aligned, false>(p, shared);
  } else {
    load_items<T, size, aligned, true>(p, shared);
  }
}

}  // namespace gsa::cuda::decoding
