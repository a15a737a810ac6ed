// Tiles of 16 index keys on their way through shared memory into the registers of the matrix products.
#pragma once

#include "kernels/decode/cuda/device.cuh"

namespace gsa::cuda::decoding {

inline constexpr int kTileKeys = 16;

// The index keys of the cache. Key: the storage type of the queries, or std::int8_t with a scale for each
// key.
struct IndexKeys {
  const void* data;
  std::int64_t page_stride, token_stride;
  const float* scale;  // null: none
  std::int64_t scale_stride;
  int head_size;
};

// Four bytes, as two pairs of numbers of type T, exactly: bytes 0 and 1, then 2 and 3.
template <typename T>
__device__ __forceinline__ void widen(std::uint32_t bytes, std::uint32_t& low, std::uint32_t& high) {
  if constexpr (is_bf16<T>) {
    // The lower seven bits on top of 128, minus 128 or (where the sign is set) 256.
    const auto pair = [](std::uint32_t on_top) {
      const std::uint32_t number = on_top & 0xff7fff7fu, base = on_top & 0xff80ff80u;
      const __nv_bfloat162 result = __hsub2(reinterpret_cast<const __nv_bfloat162&>(number),
                                            reinterpret_cast<const __nv_bfloat162&>(base));
      return reinterpret_cast<const std::uint32_t&>(result);
    };
    low = pair(__byte_perm(bytes, 0x43434343u, 0x4140));
    high = pair(__byte_perm(bytes, 0x43434343u, 0x4342));
  } else {
    // 128 more than the number on top of 1024.
    const std::uint32_t shifted = bytes ^ 0x80808080u, base = 0x64806480u;
    const auto pair = [&](std::uint32_t on_top) {
      const __half2 result =
          __hsub2(reinterpret_cast<const __half2&>(on_top), reinterpret_cast<const __half2&>(base));
      return reinterpret_cast<const std::uint32_t&>(result);
    };
    low = pair(__byte_perm(shifted, 0x64646464u, 0x4140));
    high = pair(__byte_perm(shifted, 0x64646464u, 0x4342));
  }
}

// T: of the products; steps: of 16 dimensions; aligned: rows (and scales) may be read 16 bytes at a time.
//
// Row r of a tile of T lies at r * kRowBytes, its 16-byte chunk c at c ^ (r % 8): ldmatrix then reads without
// conflicts. Rows of bytes lie as they are: a lane takes what it multiplies, 4 * steps dimensions in a row,
// and `dimension` says which step and place of the products they go to.
template <typename T, typename Key, int steps, bool aligned>
struct KeyTile {
  static constexpr bool kBytes8 = sizeof(Key) == 1;
  static constexpr int kElements = 16 / static_cast<int>(sizeof(Key));  // of a chunk
  static constexpr int kChunks = 16 * steps / kElements;                // of a row
  static constexpr int kRows = 32 / kChunks;                            // that a warp copies at once
  static constexpr int kRowBytes = kChunks * 16;
  static constexpr int kScales = kTileKeys * kRowBytes;  // where they begin
  static constexpr int kBytes = kScales + (kBytes8 ? kTileKeys * 4 : 0);
  static_assert(kRows >= 1 && kRows <= 8);

  // The dimension that operand b holds in register `word` of lane `lane` in step s, and the one after it.
  static __device__ __forceinline__ int dimension(int s, int lane, int word) {
    return kBytes8 ? lane % 4 * (4 * steps) + s * 4 + word * 2 : s * 16 + lane % 4 * 2 + word * 8;
  }

  // Where eight positions from a multiple of eight begin, all in one page, and the first of their scales:
  // memory of the cache, whether there are keys or not. A lane looks one group up; tiles are loaded from what
  // the lanes know.
  struct Group {
    const Key* rows;
    const float* scales;
  };
  static __device__ __forceinline__ Group group_at(const IndexKeys& k, int page_shift, int page,
                                                   int position) {
    const int row = position & ((1 << page_shift) - 1);
    return {static_cast<const Key*>(k.data) + page * k.page_stride + row * k.token_stride,
            kBytes8 ? k.scale + page * k.scale_stride + row : nullptr};
  }

  // What a lane copies of every row it copies: a chunk, at this distance from the rows' beginning.
  struct Lane {
    std::int64_t offset, step;  // in elements; from the lane's first row of eight to its next
    bool there;                 // the head has such a chunk

    __device__ __forceinline__ explicit Lane(const IndexKeys& k) {
      const int lane = static_cast<int>(threadIdx.x % 32), chunk = lane % kChunks;
      there = chunk * kElements < k.head_size;
      offset = lane / kChunks * k.token_stride + (there ? chunk * kElements : 0);
      step = kRows * k.token_stride;
    }
  };

  // Loads 16 positions of which the first `left` have keys; zeros for the others, and where the head has no
  // such chunk. Lane first_lane + g knows group g of eight. By a whole warp.
  static __device__ __forceinline__ void load(const IndexKeys& k, const Lane& part, char* tile, int left,
                                              const Group& known, int first_lane) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int lane_row = lane / kChunks, chunk = lane % kChunks;
    const int lane_left = part.there ? left : 0;
#pragma unroll
    for (int group = 0; group < kTileKeys / 8; ++group) {
      const Key* from = from_lane(known.rows, first_lane + group) + part.offset;
      char* const to = tile + group * 8 * kRowBytes;
#pragma unroll(aligned ? 8 : 1)
      for (int r = 0; r < 8; r += kRows) {
        const int key = r + lane_row;
        char* const target = to + key * kRowBytes + ((kBytes8 ? chunk : chunk ^ key) << 4);
        const bool valid = group * 8 + key < lane_left;
        if constexpr (aligned) {
          cp_async_16(shared_address(target), from, valid);
        } else {
#pragma unroll 1
          for (int e = 0; e < kElements; ++e) {
            reinterpret_cast<Key*>(target)[e] =
                valid && chunk * kElements + e < k.head_size ? from[e] : Key(0.0f);
          }
        }
        from += part.step;
      }
    }
    if constexpr (kBytes8) load_scales(tile, left, known, first_lane);
  }

  // Operand a of the products: fragment[s] of step s. scale: of keys lane / 4 and lane / 4 + 8.
  static __device__ __forceinline__ void read(std::uint32_t (&fragment)[steps][4], float (&scale)[2],
                                              const char* tile) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    if constexpr (kBytes8) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int key = lane / 4 + 8 * half;
        scale[half] = reinterpret_cast<const float*>(tile + kScales)[key];
        const uint4* const from =
            reinterpret_cast<const uint4*>(tile + key * kRowBytes + lane % 4 * (4 * steps));
#pragma unroll
        for (int s = 0; s < steps; s += 4) {
          const uint4 bytes = from[s / 4];
          const std::uint32_t word[4] = {bytes.x, bytes.y, bytes.z, bytes.w};
#pragma unroll
          for (int i = 0; i < 4; ++i) widen<T>(word[i], fragment[s + i][half], fragment[s + i][2 + half]);
        }
      }
    } else {
      const int key = lane % 16;
      scale[0] = scale[1] = 1.0f;
#pragma unroll
      for (int s = 0; s < steps; ++s) {
        const int chunk = (2 * s + lane / 16) ^ (key & 7);
        ldmatrix_x4(fragment[s], shared_address(tile + key * kRowBytes + chunk * 16));
      }
    }
  }

 private:
  template <typename Pointer>
  static __device__ __forceinline__ Pointer from_lane(Pointer pointer, int lane) {
    return reinterpret_cast<Pointer>(
        __shfl_sync(0xffffffffu, reinterpret_cast<std::uintptr_t>(pointer), lane));
  }
  static __device__ __forceinline__ void load_scales(char* tile, int left, const Group& known,
                                                     int first_lane) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    float* const scales = reinterpret_cast<float*>(tile + kScales);
    if constexpr (aligned) {  // four lanes, four scales each: where one of a group exists, all may be read
      const int group = lane / 2 % 2;
      const float* const from = from_lane(known.scales, first_lane + group) + lane % 2 * 4;
      const bool valid = group * 8 < left;
      if (lane < 4) cp_async_16(shared_address(scales + lane * 4), from, valid);
    } else {
      const int group = lane / 8 % 2;
      const float* const from = from_lane(known.scales, first_lane + group) + lane % 8;
      if (lane < 16) scales[lane] = lane < left ? *from : 0.0f;
    }
  }
};

}  // namespace gsa::cuda::decoding
