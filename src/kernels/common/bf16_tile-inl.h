// The products of tile-inl.h where the processor multiplies bfloat16 itself (AVX512-BF16): twice the products of an
// instruction, keys packed as they are stored, sums in float.
//
//   dot_tile     tile[r, i] = scale * rows[r] . packed[slots[i]]
//   combine      out[r]     = factor[r] * out[r] + sum_i weights[r, i] packed[slots[i]]
//
// An instruction adds two products to a sum: neighbouring columns in dot_tile, in combine neighbouring keys of the
// list, whose rows are interleaved on the way. So the bits depend on width and the order of keys alone, as there.
// combine leaves the columns of out in the order of that interleaving; in_order() ends it.
//
// Highway 1.0 knows no such target: these functions are compiled for AVX-512 and the extension, and run where
// bf16_products() says so. Included once per Highway target.
#if defined(GSA_KERNELS_BF16_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GSA_KERNELS_BF16_TILE_INL_H_
#undef GSA_KERNELS_BF16_TILE_INL_H_
#else
#define GSA_KERNELS_BF16_TILE_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/common/simd.h"
#include "kernels/common/tile-inl.h"

#undef GSA_BF16_PRODUCTS
#if HWY_TARGET == HWY_AVX3
#define GSA_BF16_PRODUCTS 1
#else
#define GSA_BF16_PRODUCTS 0
#endif

HWY_BEFORE_NAMESPACE();
namespace gsa {
namespace HWY_NAMESPACE {

// A bfloat16 in scratch memory.
struct Bf16 {
  std::uint16_t bits;
};

// How rows of P lie in scratch memory: padded with zeros to whole vectors.
template <typename P>
constexpr std::int64_t row_width(std::int64_t size) {
  constexpr std::int64_t kWhole = sizeof(P) == sizeof(Bf16) ? 2 * kPad : kPad;
  return (size + kWhole - 1) / kWhole * kWhole;
}

// dst[0..size) = src[0..size), dst[size..row_width) = 0.
template <typename P>
HWY_INLINE void pack_row(P* HWY_RESTRICT dst, const void* src, DType type, std::int64_t size) {
  if constexpr (sizeof(P) == sizeof(Bf16)) {
    std::memcpy(dst, src, static_cast<std::size_t>(size) * sizeof(Bf16));
    std::fill(dst + size, dst + row_width<Bf16>(size), Bf16{0});
  } else {
    load_row<P>(dst, src, type, size, P(1));
  }
}

#if GSA_BF16_PRODUCTS
// The columns of a row that combine() has written, in their order.
HWY_INLINE void in_order(float* row, std::int64_t width) {
  for (std::int64_t c = 0; c < width; c += 2 * kLanes) {
    float* const x = row + c;
    const __m512 low = _mm512_load_ps(x), high = _mm512_load_ps(x + kLanes);
    const __m512 first = _mm512_shuffle_f32x4(low, high, 0x44), last = _mm512_shuffle_f32x4(low, high, 0xEE);
    _mm512_store_ps(x, _mm512_shuffle_f32x4(first, first, 0xD8));
    _mm512_store_ps(x + kLanes, _mm512_shuffle_f32x4(last, last, 0xD8));
  }
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace gsa

#if GSA_BF16_PRODUCTS
#pragma GCC push_options
#pragma GCC target("avx512bf16")
namespace gsa {
namespace HWY_NAMESPACE {
namespace bf16 {

constexpr std::int64_t kVector = 32;  // values

HWY_INLINE __m512i load(const Bf16* from) { return _mm512_load_si512(from); }
HWY_INLINE __m512 add_products(__m512 sum, __m512i x, __m512i y) {
  return _mm512_dpbf16_ps(sum, (__m512bh)x, (__m512bh)y);
}
// Two neighbouring values in every pair of lanes.
HWY_INLINE __m512i both(const Bf16* pair) {
  std::int32_t bits;
  std::memcpy(&bits, pair, sizeof bits);
  return _mm512_set1_epi32(bits);
}

template <int kRows, int kKeys>
HWY_INLINE void dot_group(const Bf16* HWY_RESTRICT rows, const Bf16* HWY_RESTRICT packed,
                          const std::uint16_t* HWY_RESTRICT slots, std::int64_t width, float scale,
                          float* HWY_RESTRICT out) {
  const FloatTag d;
  FloatVec acc[kRowsAtOnce][kGroup];
  for (int r = 0; r < kRowsAtOnce; ++r) {
    for (int i = 0; i < kGroup; ++i) acc[r][i] = hn::Zero(d);
  }
  const Bf16* key[kKeys];
  for (int i = 0; i < kKeys; ++i) key[i] = packed + slots[i] * width;
  for (std::int64_t c = 0; c < width; c += kVector) {
    __m512i x[kKeys];
    for (int i = 0; i < kKeys; ++i) x[i] = load(key[i] + c);
    for (int r = 0; r < kRows; ++r) {
      const __m512i q = load(rows + r * width + c);
      for (int i = 0; i < kKeys; ++i) acc[r][i].raw = add_products(acc[r][i].raw, q, x[i]);
    }
  }
  store_sums(acc, out);
  hn::Store(hn::Mul(hn::Load(d, out), hn::Set(d, scale)), d, out);
}

template <int kRows>
HWY_INLINE void dot_rows(const Bf16* HWY_RESTRICT rows, const Bf16* HWY_RESTRICT packed,
                         const std::uint16_t* HWY_RESTRICT slots, std::int64_t count, std::int64_t width,
                         float scale, float* HWY_RESTRICT tile) {
  std::int64_t i = 0;
  for (; i + kGroup <= count; i += kGroup) {
    dot_group<kRows, kGroup>(rows, packed, slots + i, width, scale, tile + i * kTileRows);
  }
  switch (count - i) {
    case 1:
      dot_group<kRows, 1>(rows, packed, slots + i, width, scale, tile + i * kTileRows);
      break;
    case 2:
      dot_group<kRows, 2>(rows, packed, slots + i, width, scale, tile + i * kTileRows);
      break;
    case 3:
      dot_group<kRows, 3>(rows, packed, slots + i, width, scale, tile + i * kTileRows);
      break;
    default:
      break;
  }
}

// kVectors: of 32 columns.
template <int kRows, int kVectors>
HWY_INLINE void combine_columns(const Bf16* HWY_RESTRICT weights, const float* HWY_RESTRICT factor,
                                const Bf16* HWY_RESTRICT packed, const std::uint16_t* HWY_RESTRICT slots,
                                std::int64_t count, std::int64_t width, float* HWY_RESTRICT out) {
  constexpr int kColumns = 2 * kVectors;
  __m512 acc[kRows][kColumns];
  for (int r = 0; r < kRows; ++r) {
    const __m512 f = _mm512_set1_ps(factor[r * kGroup]);
    for (int c = 0; c < kColumns; ++c)
      acc[r][c] = _mm512_mul_ps(f, _mm512_load_ps(out + r * width + c * kLanes));
  }
  const auto add_pair = [&](std::int64_t i, const __m512i(&x)[kVectors], const __m512i(&y)[kVectors]) {
    __m512i low[kVectors], high[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      low[v] = _mm512_unpacklo_epi16(x[v], y[v]);
      high[v] = _mm512_unpackhi_epi16(x[v], y[v]);
    }
    const Bf16* p = weights + tile_index(0, i);
    for (int r = 0; r < kRows; ++r) {
      const __m512i weight = both(p + r * kGroup);
      for (int v = 0; v < kVectors; ++v) {
        acc[r][2 * v] = add_products(acc[r][2 * v], low[v], weight);
        acc[r][2 * v + 1] = add_products(acc[r][2 * v + 1], high[v], weight);
      }
    }
  };
  __m512i x[kVectors], y[kVectors];
  std::int64_t i = 0;
  for (; i + 2 <= count; i += 2) {
    const Bf16 *first = packed + slots[i] * width, *second = packed + slots[i + 1] * width;
    for (int v = 0; v < kVectors; ++v) {
      x[v] = load(first + v * kVector);
      y[v] = load(second + v * kVector);
    }
    add_pair(i, x, y);
  }
  if (i < count) {
    for (int v = 0; v < kVectors; ++v) {
      x[v] = load(packed + slots[i] * width + v * kVector);
      y[v] = _mm512_setzero_si512();
    }
    add_pair(i, x, y);
  }
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kColumns; ++c) _mm512_store_ps(out + r * width + c * kLanes, acc[r][c]);
  }
}

template <int kRows>
HWY_INLINE void combine_rows(const Bf16* weights, const float* factor, const Bf16* packed,
                             const std::uint16_t* slots, std::int64_t count, std::int64_t width, float* out) {
  std::int64_t c = 0;
  for (; c + 2 * kVector <= width; c += 2 * kVector) {
    combine_columns<kRows, 2>(weights, factor, packed + c, slots, count, width, out + c);
  }
  if (c < width) combine_columns<kRows, 1>(weights, factor, packed + c, slots, count, width, out + c);
}

}  // namespace bf16

// rows: [row_count, width], row_count <= 4. Values of absent rows and keys in the tile are unspecified. Not inlined,
// like what follows: the caller is compiled without the extension.
HWY_NOINLINE inline void dot_tile(const Bf16* rows, int row_count, const Bf16* packed,
                                  const std::uint16_t* slots, std::int64_t count, std::int64_t width,
                                  float scale, float* tile) {
  switch (row_count) {
    case 1:
      return bf16::dot_rows<1>(rows, packed, slots, count, width, scale, tile);
    case 2:
      return bf16::dot_rows<2>(rows, packed, slots, count, width, scale, tile);
    case 3:
      return bf16::dot_rows<3>(rows, packed, slots, count, width, scale, tile);
    default:
      return bf16::dot_rows<4>(rows, packed, slots, count, width, scale, tile);
  }
}

// factor: one value a row, at [row * 4].
HWY_NOINLINE inline void combine(const Bf16* weights, const float* factor, int row_count, const Bf16* packed,
                                 const std::uint16_t* slots, std::int64_t count, std::int64_t width,
                                 float* out) {
  switch (row_count) {
    case 1:
      return bf16::combine_rows<1>(weights, factor, packed, slots, count, width, out);
    case 2:
      return bf16::combine_rows<2>(weights, factor, packed, slots, count, width, out);
    case 3:
      return bf16::combine_rows<3>(weights, factor, packed, slots, count, width, out);
    default:
      return bf16::combine_rows<4>(weights, factor, packed, slots, count, width, out);
  }
}

// The first `count` keys of a tile, rounded to the nearest, in the tile's own memory.
HWY_NOINLINE inline const Bf16* rounded_weights(float* tile, std::int64_t count) {
  Bf16* weights = reinterpret_cast<Bf16*>(tile);
  for (std::int64_t i = 0; i < tile_size(count); i += kLanes) {
    const __m256bh rounded = _mm512_cvtneps_pbh(_mm512_load_ps(tile + i));
    _mm256_store_si256(reinterpret_cast<__m256i*>(weights + i), (__m256i)rounded);
  }
  return weights;
}

}  // namespace HWY_NAMESPACE
}  // namespace gsa
#pragma GCC pop_options
#endif  // GSA_BF16_PRODUCTS
HWY_AFTER_NAMESPACE();

#endif  // GSA_KERNELS_BF16_TILE_INL_H_
