// The producer of attend forward on Hopper: rows of K and V into the ring in shared memory. Two warps copy
// keys, two copy values, so that neither waits for room for the other.
#pragma once

#include "kernels/attend/hopper/forward_tile.cuh"

namespace gsa::cuda::forward {

constexpr int kTeam = kProducers / 2;

template <typename T, int head_size, int stages, bool dense, bool fallback>
class Producer {
 public:
  static constexpr int kChunks = head_size / 8;               // of 16 bytes in a row
  static constexpr int kRows = kBlockKeys * kChunks / kTeam;  // rows a thread copies a chunk of
  static constexpr int kTile = kBlockKeys * head_size * 2;

  // Addresses of the ring's tiles and barriers; nonfinite: where values that are not finite are named, or
  // null.
  __device__ __forceinline__ Producer(const Params& p, const Strided& from, const char* tiles,
                                      const std::uint64_t* full, const std::uint64_t* empty,
                                      std::uint32_t (*nonfinite)[2])
      : p_(p),
        from_(from),
        full_(shared_address(full)),
        empty_(shared_address(empty)),
        nonfinite_(nonfinite),
        lane_(static_cast<int>(threadIdx.x % 32)) {
    const int thread = static_cast<int>(threadIdx.x % kTeam);
    row_ = thread / kChunks * kRows;
    const int chunk = thread % kChunks;
    chunk_bytes_ = chunk * 16;
    to_ = shared_address(tiles) + static_cast<std::uint32_t>(chunk / 8 * kBlockKeys * 128) +
          hopper::swizzled(row_, chunk % 8);
  }

  __device__ __forceinline__ void run(const Item& item) {
    const char* const first = from_.at(item.k_begin, item.kv_head) + chunk_bytes_;
    const int last = item.first_position + item.queries - 1;
    const int* list = p_.plan.keys + static_cast<std::size_t>(item.tile) * p_.plan.capacity + row_;
    int keys[kRows];
    for (int block = 0; block < item.blocks; ++block, list += kBlockKeys) {
#pragma unroll
      for (int i = 0; i < kRows; i += 4) {
        if constexpr (dense) {
#pragma unroll
          for (int j = 0; j < 4; ++j) keys[i + j] = min(block * kBlockKeys + row_ + i + j, last);
        } else {
          const int4 four = __ldg(reinterpret_cast<const int4*>(list + i));
          keys[i] = four.x;
          keys[i + 1] = four.y;
          keys[i + 2] = four.z;
          keys[i + 3] = four.w;
        }
      }
      const std::uint32_t barrier = static_cast<std::uint32_t>(ring_.stage * 8);
      const std::uint32_t to = to_ + static_cast<std::uint32_t>(ring_.stage * kTile);
      hopper::barrier_wait(empty_ + barrier, ring_.phase ^ 1);
      if constexpr (fallback) {
        copy_checked(first, keys, to);
        hopper::barrier_arrive(full_ + barrier);
      } else {
#pragma unroll
        for (int i = 0; i < kRows; ++i) cp_async_16(place(to, i), row(first, keys[i]));
        hopper::barrier_arrive_after_copies(full_ + barrier);
      }
      ring_.advance();
    }
  }

 private:
  // Row row_ + i: 128 bytes further for each, its chunks swizzled by i % 8.
  static __device__ __forceinline__ std::uint32_t place(std::uint32_t to, int i) {
    return (to + static_cast<std::uint32_t>(i / 8 * 1024)) ^ static_cast<std::uint32_t>(i % 8 * 144);
  }
  // Unsigned: a product of 32 bits by 32.
  __device__ __forceinline__ const char* row(const char* first, int key) const {
    return first + static_cast<std::uint64_t>(static_cast<std::uint32_t>(key)) *
                       static_cast<std::uint32_t>(from_.token_bytes);
  }

  // Values with a NaN or an infinity are left out (zeros) and named to the consumers.
  __device__ __forceinline__ void copy_checked(const char* first, const int (&keys)[kRows],
                                               std::uint32_t to) {
    std::uint32_t nonfinite = 0;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      uint4 x = *reinterpret_cast<const uint4*>(row(first, keys[i]));
      if (nonfinite_ != nullptr) {
        const bool bad = not_finite<T>(x.x) || not_finite<T>(x.y) || not_finite<T>(x.z) || not_finite<T>(x.w);
        const std::uint32_t lanes = __ballot_sync(0xffffffffu, bad);
#pragma unroll
        for (int g = 0; g < 32 / kChunks; ++g) {
          const bool of_row = (lanes >> (g * kChunks) & ((1u << kChunks) - 1)) != 0;
          if (of_row) nonfinite |= 1u << (g * kRows + i);
          if (of_row && lane_ / kChunks == g) x = uint4{0, 0, 0, 0};
        }
      }
      asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(place(to, i)), "r"(x.x), "r"(x.y),
                   "r"(x.z), "r"(x.w)
                   : "memory");
    }
    if (nonfinite_ != nullptr && lane_ == 0) nonfinite_[ring_.stage][threadIdx.x % kTeam / 32] = nonfinite;
    __syncwarp();
    hopper::fence_async_proxy();
  }

  const Params& p_;
  const Strided& from_;
  const std::uint32_t full_, empty_;
  std::uint32_t (*const nonfinite_)[2];
  const int lane_;
  int row_, chunk_bytes_;
  std::uint32_t to_;
  Ring<stages> ring_;
};

}  // namespace gsa::cuda::forward
