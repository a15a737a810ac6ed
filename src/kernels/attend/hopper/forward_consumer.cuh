// A consumer of attend forward on Hopper: one warpgroup, 64 rows.
#pragma once

#include "kernels/attend/hopper/forward_tile.cuh"

namespace gsa::cuda::forward {

template <typename T, int head_size, int rows, bool dense, bool fallback>
class Consumer {
 public:
  using Memory = Shared<head_size, rows>;

  __device__ __forceinline__ Consumer(const Params& p, Memory& memory)
      : p_(p),
        memory_(memory),
        thread_(static_cast<int>(threadIdx.x % 128)),
        lane_(static_cast<int>(threadIdx.x % 32)) {}

  // part: which 64 rows of the tile; index: the item's number.
  __device__ __forceinline__ void run(const Item& item, int index, int part) {
    const int row = part * 64 + thread_ / 32 * 16 + lane_ / 4;
    query_[0] = row >> p_.group_log2;
    query_[1] = (row + 8) >> p_.group_log2;
    const int head = item.kv_head << p_.group_log2;
    head_[0] = head + (row & ((1 << p_.group_log2) - 1));
    head_[1] = head + ((row + 8) & ((1 << p_.group_log2) - 1));
    load_q(item);
    if constexpr (!dense) {
      const std::size_t blocks = static_cast<std::size_t>(item.tile) * (p_.plan.capacity / kBlockKeys);
      const auto* const words =
          reinterpret_cast<const std::uint16_t*>(p_.plan.words + blocks * p_.tile_queries) + lane_ % 4;
      words_[0] = words + 4 * query_[0];
      words_[1] = words + 4 * query_[1];
    }
#pragma unroll
    for (int i = 0; i < head_size / 2; ++i) o_[i] = 0;
    maximum_[0] = maximum_[1] = scaled_maximum_[0] = scaled_maximum_[1] = -INFINITY;
    sum_[0] = sum_[1] = 0;

    for (int block = 0; block + 1 < item.blocks; block += 2) visit<2>(item, block);
    if (item.blocks % 2 != 0) {
      visit<1>(item, item.blocks - 1);
      finish_values<1>(item);
    } else if (item.blocks > 0) {
      finish_values<2>(item);
    }
    if constexpr (!fallback) note(index, part);
    finish(item);
  }

 private:
  static constexpr int kSteps = head_size / 16;

  __device__ __forceinline__ void load_q(const Item& item) {
    const char* from[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = item.first_query + min(query_[half], item.queries - 1);
      from[half] = p_.q.at(query, head_[half]) + lane_ % 4 * 4;
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        q_[step][i] = __ldg(reinterpret_cast<const std::uint32_t*>(from[i % 2] + step * 32 + i / 2 * 16));
      }
    }
    if (p_.q_factor != 1) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int i = 0; i < 4; ++i) q_[step][i] = times(q_[step][i], p_.q_factor);
      }
    }
  }

  static __device__ __forceinline__ float low_of(std::uint32_t pair) {
    const std::uint16_t bits = static_cast<std::uint16_t>(pair & 0xffff);
    T value;
    memcpy(&value, &bits, 2);
    return to_float(value);
  }
  static __device__ __forceinline__ std::uint32_t times(std::uint32_t pair, float factor) {
    return pack<T>(low_of(pair) * factor, low_of(pair >> 16) * factor);
  }

  // Blocks of keys are taken two at a time: two products that do not wait for each other, and one softmax. A
  // list of an odd number ends with a single one, for which the same bits come out as if a block of masked
  // keys came with it.
  struct Places {
    int stage[2];
    std::uint32_t phase[2];

    template <int count, int stages>
    __device__ __forceinline__ void take(Ring<stages>& ring) {
#pragma unroll
      for (int i = 0; i < count; ++i) {
        stage[i] = __shfl_sync(0xffffffffu, ring.stage, 0);  // so that addresses stay uniform
        phase[i] = ring.phase;
        ring.advance();
      }
    }
    template <int count, int stages>
    __device__ __forceinline__ void wait(const std::uint64_t (&full)[stages]) const {
#pragma unroll
      for (int i = 0; i < count; ++i) hopper::barrier_wait(shared_address(&full[stage[i]]), phase[i]);
      hopper::fence_async_proxy();
    }
    template <int count, int stages>
    __device__ __forceinline__ void release(const std::uint64_t (&empty)[stages]) const {
      __syncwarp();
#pragma unroll
      for (int i = 0; i < count; ++i) {
        if (threadIdx.x % 32 == 0) hopper::barrier_arrive(shared_address(&empty[stage[i]]));
      }
    }
  };

  // Values of the blocks before, then scores and softmax of `count` blocks from `block` on.
  template <int count>
  __device__ __forceinline__ void visit(const Item& item, int block) {
    Places k;
    k.template take<count>(k_ring_);
    std::uint32_t mask[2][2];
    load_mask<count>(item, block, mask);
    if (block > 0) finish_values<2>(item);
    if constexpr (fallback) block_ = block;

    float s[count][kBlockKeys / 2];
    k.template wait<count>(memory_.k_full);
    std::uint64_t tile[count];
#pragma unroll
    for (int i = 0; i < count; ++i) tile[i] = hopper::k_major(shared_address(memory_.k[k.stage[i]]));
    hopper::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int at = step / 4 * kBlockKeys * 128 + step % 4 * 32;
#pragma unroll
      for (int i = 0; i < count; ++i) {
        hopper::wgmma<T, kBlockKeys, hopper::Major::k>(s[i], q_[step], tile[i] + (at >> 4), step != 0);
      }
    }
    hopper::wgmma_commit();
    hopper::wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < count; ++i) hopper::keep(s[i]);
    k.template release<count>(memory_.k_empty);

    float factor[2];
    softmax<count>(s, mask, factor);
    // The maximum moves less and less often; a factor of 1 changes nothing.
    if (__any_sync(0xffffffffu, factor[0] != 1 || factor[1] != 1)) {
#pragma unroll
      for (int j = 0; j < head_size / 8; ++j) {
        o_[4 * j] *= factor[0];
        o_[4 * j + 1] *= factor[0];
        o_[4 * j + 2] *= factor[1];
        o_[4 * j + 3] *= factor[1];
      }
    }
    // The accumulator's layout of a product is the operand's layout of the next.
#pragma unroll
    for (int step = 0; step < count * kBlockKeys / 16; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* const from = &s[step / 4][step % 4 * 8 + 2 * i];
        probability_[step][i] = pack<T>(from[0], from[1]);
      }
    }
    values_.template take<count>(v_ring_);
  }

  // o += p v.
  template <int count>
  __device__ __forceinline__ void finish_values(const Item& item) {
    values_.template wait<count>(memory_.v_full);
    std::uint64_t tile[count];
#pragma unroll
    for (int i = 0; i < count; ++i) {
      tile[i] = hopper::mn_major(shared_address(memory_.v[values_.stage[i]]), kBlockKeys * 128);
    }
    hopper::keep(o_);
    hopper::wgmma_fence();
#pragma unroll
    for (int step = 0; step < count * kBlockKeys / 16; ++step) {
      hopper::wgmma<T, head_size, hopper::Major::mn>(o_, probability_[step],
                                                     tile[step / 4] + (step % 4 * 2048 >> 4), 1);
    }
    hopper::wgmma_commit();
    hopper::wgmma_wait<0>();
    hopper::keep(o_);
    if constexpr (fallback) {
#pragma unroll
      for (int i = 0; i < count; ++i) add_nonfinite(item, block_ + i, values_.stage[i], i);
    }
    values_.template release<count>(memory_.v_empty);
  }

  // Which keys of the blocks count: a bit for each of the accumulator's columns that the thread holds.
  template <int count>
  __device__ __forceinline__ void load_mask(const Item& item, int block, std::uint32_t (&mask)[2][2]) const {
#pragma unroll
    for (int i = 0; i < count; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if constexpr (dense) {
          // How far the query sees beyond the thread's first column. Of eight columns it holds two.
          const int ahead =
              min(item.first_position + query_[half] - (block + i) * kBlockKeys, 63) - lane_ % 4 * 2;
          const int columns = ahead / 8 * 2 + min(ahead % 8 + 1, 2);
          mask[i][half] = ahead < 0 ? 0 : (1u << columns) - 1;
        } else {
          mask[i][half] = __ldg(words_[half] + (block + i) * 4 * p_.tile_queries);
        }
      }
    }
  }

  // s becomes exp2(scale s - maximum), 0 where masked; factor is what earlier sums have to be multiplied by.
  template <int count>
  __device__ __forceinline__ void softmax(float (&s)[count][kBlockKeys / 2],
                                          const std::uint32_t (&mask)[2][2], float (&factor)[2]) {
    std::uint32_t all = 0xffff;
#pragma unroll
    for (int n = 0; n < count; ++n) all &= mask[n][0] & mask[n][1];
    if (!dense || !__all_sync(0xffffffffu, all == 0xffff)) {
#pragma unroll
      for (int n = 0; n < count; ++n) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
          for (int j = 0; j < kBlockKeys / 8; ++j) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              float& x = s[n][4 * j + 2 * half + i];
              x = (mask[n][half] & 1u << (2 * j + i)) != 0 ? x : -INFINITY;
            }
          }
        }
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // Four chains each for maximum and sum: none waits for itself.
      float top[4] = {maximum_[half], -INFINITY, -INFINITY, -INFINITY};
#pragma unroll
      for (int n = 0; n < count; ++n) {
#pragma unroll
        for (int j = 0; j < kBlockKeys / 8; ++j) {
          top[j % 4] = fmaxf(top[j % 4], fmaxf(s[n][4 * j + 2 * half], s[n][4 * j + 2 * half + 1]));
        }
      }
      float highest = fmaxf(fmaxf(top[0], top[1]), fmaxf(top[2], top[3]));
      highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, 1));
      highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, 2));
      // Of the rounded product: where the maximum stays, the factor is 1 and no bit changes.
      const float scaled = highest * p_.scale;
      const float offset = scaled == -INFINITY ? 0 : scaled;
      factor[half] = exp2_fast(scaled_maximum_[half] - offset);
      maximum_[half] = highest;
      scaled_maximum_[half] = scaled;
      float sum[4] = {0, 0, 0, 0};
#pragma unroll
      for (int n = 0; n < count; ++n) {
#pragma unroll
        for (int j = 0; j < kBlockKeys / 8; ++j) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            float& x = s[n][4 * j + 2 * half + i];
            x = exp2_fast(fmaf(x, p_.scale, -offset));
            sum[j % 2 * 2 + i] += x;
          }
        }
      }
      sum_[half] = fmaf(sum_[half], factor[half], (sum[0] + sum[1]) + (sum[2] + sum[3]));
    }
  }

  // Adds the values that the producer kept out of the product, to the rows that selected them.
  __device__ __forceinline__ void add_nonfinite(const Item& item, int block, int stage, int which) {
    std::uint64_t nonfinite =
        static_cast<std::uint64_t>(memory_.nonfinite[stage][1]) << 32 | memory_.nonfinite[stage][0];
    while (nonfinite != 0) {
      const int place = __ffsll(static_cast<long long>(nonfinite)) - 1;
      nonfinite &= nonfinite - 1;
      int key = block * kBlockKeys + place;
      bool selected[2];
      if constexpr (dense) {
        for (int half = 0; half < 2; ++half) selected[half] = key <= item.first_position + query_[half];
        key = min(key, item.first_position + item.queries - 1);
      } else {
        const std::size_t entry = static_cast<std::size_t>(item.tile) * p_.plan.capacity + key;
        const std::uint64_t who = p_.plan.bits[entry];
        for (int half = 0; half < 2; ++half) selected[half] = (who >> query_[half] & 1) != 0;
        key = p_.plan.keys[entry];
      }
      std::uint32_t pairs[2] = {};
#pragma unroll
      for (int step = 0; step < kBlockKeys / 16; ++step) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (place / 8 == 2 * step + i / 2) {
            pairs[i % 2] = probability_[which * (kBlockKeys / 16) + step][i];
          }
        }
      }
      float weight[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::uint32_t pair = __shfl_sync(0xffffffffu, pairs[half], lane_ / 4 * 4 + place % 8 / 2);
        weight[half] = low_of(pair >> (place % 2 * 16));
      }
      const char* const v = p_.v.at(item.k_begin + key, item.kv_head) + lane_ % 4 * 4;
#pragma unroll
      for (int j = 0; j < head_size / 8; ++j) {
        const std::uint32_t pair = *reinterpret_cast<const std::uint32_t*>(v + 16 * j);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          if (selected[half]) {
            o_[4 * j + 2 * half] += weight[half] * low_of(pair);
            o_[4 * j + 2 * half + 1] += weight[half] * low_of(pair >> 16);
          }
        }
      }
    }
  }

  // A NaN or an infinity among the sums: perhaps a value of a key that the row did not select.
  __device__ __forceinline__ void note(int index, int part) {
    float zero = 0;
#pragma unroll
    for (int i = 0; i < head_size / 2; ++i) zero = fmaf(o_[i], 0.0f, zero);
    if (__any_sync(0xffffffffu, zero != 0)) {
      const int entry = index * p_.parts + part;
      if (lane_ == 0 && atomicExch(p_.noted + entry, 1) == 0) p_.list[atomicAdd(p_.list_size, 1)] = entry;
    }
  }

  __device__ __forceinline__ void finish(const Item& item) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = sum_[half];
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      if (query_[half] >= item.queries) continue;
      const int query = item.first_query + query_[half];
      // An empty selection leaves sum = 0, and 0 * (1 / 0) is the NaN that the contract asks for.
      const float inverse = 1.0f / sum;
      char* const to = const_cast<char*>(p_.out.at(query, head_[half])) + lane_ % 4 * 4;
#pragma unroll
      for (int j = 0; j < head_size / 8; ++j) {
        *reinterpret_cast<std::uint32_t*>(to + 16 * j) =
            pack<T>(o_[4 * j + 2 * half] * inverse, o_[4 * j + 2 * half + 1] * inverse);
      }
      if (p_.lse != nullptr && lane_ % 4 == 0) {
        const float lse = sum == 0 ? NAN : (scaled_maximum_[half] + log2f(sum)) * 0.693147180559945f;
        p_.lse[static_cast<std::int64_t>(query) * p_.heads + head_[half]] = lse;
      }
    }
  }

  const Params& p_;
  Memory& memory_;
  const int thread_, lane_;
  int query_[2], head_[2];
  const std::uint16_t*
      words_[2];  // of the plan: the thread's bits of its two queries, from the first block on
  std::uint32_t q_[kSteps][4];
  float o_[head_size / 2];
  std::uint32_t probability_[kBlockKeys / 8][4];
  float maximum_[2], scaled_maximum_[2], sum_[2];
  int block_ = 0;  // of the fallback: the first block whose values come next
  Ring<Memory::kStages.k> k_ring_;
  Ring<Memory::kStages.v> v_ring_;
  Places values_;  // of the blocks whose values come next
};

}  // namespace gsa::cuda::forward
