// The four products of sparse attention on a small tile: up to 4 rows (query heads) times the selected keys
// of one block. Keys lie packed in scratch memory as rows of `width` values; `slots` lists those a query
// wants.
//
//   dot_tile     tile[r, i]       = rows[r] . packed[slots[i]]
//   combine      out[r]           = factor[r] * out[r] + sum_i tile[r, i] packed[slots[i]]
//   spread       packed[slots[i]] += sum_r tile[r, i] rows[r]
//
// A tile is stored in groups of four keys: element (r, i) at (i / 4) * 16 + r * 4 + i % 4, so that one vector
// of 16 holds four rows of four keys and each row fills one 128-bit block: row-wise maxima and sums stay
// inside blocks. dot_tile and combine add in an order that depends on nothing but width and the order of keys:
// any grouping of rows gives the same bits. spread adds a group's rows before it adds them to packed, so there
// the grouping counts. Included once per Highway target.
#if defined(GSA_KERNELS_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GSA_KERNELS_TILE_INL_H_
#undef GSA_KERNELS_TILE_INL_H_
#else
#define GSA_KERNELS_TILE_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/common/numeric-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gsa {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int kTileRows = 4;
constexpr int kGroup = 4;                       // keys of a group
constexpr int kGroupSize = kTileRows * kGroup;  // values of a group
constexpr std::int64_t tile_index(std::int64_t row, std::int64_t key) {
  return key / kGroup * kGroupSize + row * kGroup + key % kGroup;
}
constexpr std::int64_t tile_size(std::int64_t keys) { return (keys + kGroup - 1) / kGroup * kGroupSize; }

using FloatTag = hn::CappedTag<float, 16>;
using FloatVec = hn::Vec<FloatTag>;
constexpr std::int64_t kLanes = static_cast<std::int64_t>(hn::MaxLanes(FloatTag()));
static_assert(kPad % kLanes == 0);

// Vectors of accumulators that fit into the register file beside their operands.
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SSE4
constexpr int kRowsAtOnce = 2;
constexpr int kColumnsAtOnce = 2;
#else
constexpr int kRowsAtOnce = 4;
constexpr int kColumnsAtOnce = 4;
#endif

// Four vectors to one: lane j of each 128-bit block is the sum of that block of v_j.
HWY_INLINE FloatVec sum_in_blocks(FloatVec v0, FloatVec v1, FloatVec v2, FloatVec v3) {
  const FloatTag d;
  const hn::Repartition<double, FloatTag> d64;
  const FloatVec a = hn::Add(hn::InterleaveLower(d, v0, v1), hn::InterleaveUpper(d, v0, v1));
  const FloatVec b = hn::Add(hn::InterleaveLower(d, v2, v3), hn::InterleaveUpper(d, v2, v3));
  const auto a64 = hn::BitCast(d64, a);
  const auto b64 = hn::BitCast(d64, b);
  return hn::Add(hn::BitCast(d, hn::InterleaveLower(d64, a64, b64)),
                 hn::BitCast(d, hn::InterleaveUpper(d64, a64, b64)));
}

// Writes rows [first, first + kRowsAtOnce) of one group of four keys from their accumulators.
HWY_INLINE void store_sums(const FloatVec (&acc)[kRowsAtOnce][kGroup], float* HWY_RESTRICT out) {
  const FloatTag d;
  FloatVec u[kRowsAtOnce];
  for (int r = 0; r < kRowsAtOnce; ++r) u[r] = sum_in_blocks(acc[r][0], acc[r][1], acc[r][2], acc[r][3]);
  if constexpr (kLanes == 16 && kRowsAtOnce == 4) {
    const FloatVec even = hn::Add(hn::ConcatLowerLower(d, u[2], u[0]), hn::ConcatUpperUpper(d, u[2], u[0]));
    const FloatVec odd = hn::Add(hn::ConcatLowerLower(d, u[3], u[1]), hn::ConcatUpperUpper(d, u[3], u[1]));
    hn::Store(hn::OddEvenBlocks(hn::Add(odd, hn::SwapAdjacentBlocks(odd)),
                                hn::Add(even, hn::SwapAdjacentBlocks(even))),
              d, out);
  } else if constexpr (kLanes == 8) {
    for (int r = 0; r < kRowsAtOnce; r += 2) {
      hn::Store(hn::Add(hn::ConcatLowerLower(d, u[r + 1], u[r]), hn::ConcatUpperUpper(d, u[r + 1], u[r])), d,
                out + r * kGroup);
    }
  } else {
    static_assert(kLanes == 4 || kLanes == 8 || kLanes == 16);
    for (int r = 0; r < kRowsAtOnce; ++r) hn::Store(u[r], d, out + r * kGroup);
  }
}

template <int kRows, int kKeys>
HWY_INLINE void dot_group(const float* HWY_RESTRICT rows, const float* HWY_RESTRICT packed,
                          const std::uint16_t* HWY_RESTRICT slots, std::int64_t width,
                          float* HWY_RESTRICT out) {
  const FloatTag d;
  FloatVec acc[kRowsAtOnce][kGroup];
  for (int r = 0; r < kRowsAtOnce; ++r) {
    for (int i = 0; i < kGroup; ++i) acc[r][i] = hn::Zero(d);
  }
  const float* key[kKeys];
  for (int i = 0; i < kKeys; ++i) key[i] = packed + slots[i] * width;
  for (std::int64_t c = 0; c < width; c += kLanes) {
    FloatVec x[kKeys];
    for (int i = 0; i < kKeys; ++i) x[i] = hn::Load(d, key[i] + c);
    for (int r = 0; r < kRows; ++r) {
      const FloatVec q = hn::Load(d, rows + r * width + c);
      for (int i = 0; i < kKeys; ++i) acc[r][i] = hn::MulAdd(q, x[i], acc[r][i]);
    }
  }
  store_sums(acc, out);
}

template <int kRows>
HWY_INLINE void dot_rows(const float* HWY_RESTRICT rows, const float* HWY_RESTRICT packed,
                         const std::uint16_t* HWY_RESTRICT slots, std::int64_t count, std::int64_t width,
                         float* HWY_RESTRICT tile) {
  std::int64_t i = 0;
  for (; i + kGroup <= count; i += kGroup) {
    dot_group<kRows, kGroup>(rows, packed, slots + i, width, tile + i * kTileRows);
  }
  switch (count - i) {
    case 1:
      dot_group<kRows, 1>(rows, packed, slots + i, width, tile + i * kTileRows);
      break;
    case 2:
      dot_group<kRows, 2>(rows, packed, slots + i, width, tile + i * kTileRows);
      break;
    case 3:
      dot_group<kRows, 3>(rows, packed, slots + i, width, tile + i * kTileRows);
      break;
    default:
      break;
  }
}

// rows: [row_count, width], row_count <= 4. Values of absent rows and keys in the tile are unspecified.
HWY_INLINE void dot_tile(const float* rows, int row_count, const float* packed, const std::uint16_t* slots,
                         std::int64_t count, std::int64_t width, float* tile) {
  for (int r = 0; r < row_count; r += kRowsAtOnce) {
    const float* part = rows + r * width;
    float* out = tile + r * kGroup;
    switch (std::min(row_count - r, kRowsAtOnce)) {
      case 1:
        dot_rows<1>(part, packed, slots, count, width, out);
        break;
      case 2:
        dot_rows<2>(part, packed, slots, count, width, out);
        break;
      case 3:
        dot_rows<std::min(3, kRowsAtOnce)>(part, packed, slots, count, width, out);
        break;
      default:
        dot_rows<kRowsAtOnce>(part, packed, slots, count, width, out);
        break;
    }
  }
}

template <int kRows, int kColumns>
HWY_INLINE void combine_columns(const float* HWY_RESTRICT tile, const float* HWY_RESTRICT factor,
                                const float* HWY_RESTRICT packed, const std::uint16_t* HWY_RESTRICT slots,
                                std::int64_t count, std::int64_t width, float* HWY_RESTRICT out) {
  const FloatTag d;
  FloatVec acc[kRows][kColumns];
  for (int r = 0; r < kRows; ++r) {
    const FloatVec f = hn::Set(d, factor[r * kGroup]);
    for (int c = 0; c < kColumns; ++c) acc[r][c] = hn::Mul(f, hn::Load(d, out + r * width + c * kLanes));
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const float* x = packed + slots[i] * width;
    const float* p = tile + tile_index(0, i);
    FloatVec v[kColumns];
    for (int c = 0; c < kColumns; ++c) v[c] = hn::Load(d, x + c * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const FloatVec weight = hn::Set(d, p[r * kGroup]);
      for (int c = 0; c < kColumns; ++c) acc[r][c] = hn::MulAdd(weight, v[c], acc[r][c]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kColumns; ++c) hn::Store(acc[r][c], d, out + r * width + c * kLanes);
  }
}

template <int kRows, int kColumns>
HWY_INLINE void spread_columns(const float* HWY_RESTRICT tile, const float* HWY_RESTRICT rows,
                               const std::uint16_t* HWY_RESTRICT slots, std::int64_t count,
                               std::int64_t width, float* HWY_RESTRICT packed) {
  const FloatTag d;
  FloatVec y[kRows][kColumns];
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kColumns; ++c) y[r][c] = hn::Load(d, rows + r * width + c * kLanes);
  }
  for (std::int64_t i = 0; i < count; ++i) {
    float* x = packed + slots[i] * width;
    const float* p = tile + tile_index(0, i);
    // The rows' sum first: the chain of roundings into x is then as long as there are groups of rows, not
    // rows.
    FloatVec sum[kColumns];
    for (int c = 0; c < kColumns; ++c) sum[c] = hn::Mul(hn::Set(d, p[0]), y[0][c]);
    for (int r = 1; r < kRows; ++r) {
      const FloatVec weight = hn::Set(d, p[r * kGroup]);
      for (int c = 0; c < kColumns; ++c) sum[c] = hn::MulAdd(weight, y[r][c], sum[c]);
    }
    for (int c = 0; c < kColumns; ++c)
      hn::Store(hn::Add(hn::Load(d, x + c * kLanes), sum[c]), d, x + c * kLanes);
  }
}

// Calls body.run<rows, columns>(first column) so that the tiles cover all rows and columns.
template <int kRows, class Body>
HWY_INLINE void for_columns(std::int64_t width, const Body& body) {
  std::int64_t c = 0;
  for (; c + kColumnsAtOnce * kLanes <= width; c += kColumnsAtOnce * kLanes) {
    body.template run<kRows, kColumnsAtOnce>(c);
  }
  for (; c < width; c += kLanes) body.template run<kRows, 1>(c);
}

template <class Body>
HWY_INLINE void for_register_tiles(int row_count, std::int64_t width, const Body& body) {
  switch (row_count) {
    case 1:
      return for_columns<1>(width, body);
    case 2:
      return for_columns<2>(width, body);
    case 3:
      return for_columns<3>(width, body);
    default:
      return for_columns<4>(width, body);
  }
}

struct CombineBody {
  const float *tile, *factor, *packed;
  const std::uint16_t* slots;
  std::int64_t count, width;
  float* out;
  template <int kRows, int kColumns>
  HWY_INLINE void run(std::int64_t c) const {
    combine_columns<kRows, kColumns>(tile, factor, packed + c, slots, count, width, out + c);
  }
};

struct SpreadBody {
  const float *tile, *rows;
  const std::uint16_t* slots;
  std::int64_t count, width;
  float* packed;
  template <int kRows, int kColumns>
  HWY_INLINE void run(std::int64_t c) const {
    spread_columns<kRows, kColumns>(tile, rows + c, slots, count, width, packed + c);
  }
};

// factor: one value a row, at [row * 4].
HWY_INLINE void combine(const float* tile, const float* factor, int row_count, const float* packed,
                        const std::uint16_t* slots, std::int64_t count, std::int64_t width, float* out) {
  for_register_tiles(row_count, width, CombineBody{tile, factor, packed, slots, count, width, out});
}

HWY_INLINE void spread(const float* tile, const float* rows, int row_count, const std::uint16_t* slots,
                       std::int64_t count, std::int64_t width, float* packed) {
  for_register_tiles(row_count, width, SpreadBody{tile, rows, slots, count, width, packed});
}

// double serves gradient checks: plain loops.
HWY_INLINE void dot_tile(const double* rows, int row_count, const double* packed, const std::uint16_t* slots,
                         std::int64_t count, std::int64_t width, double* tile) {
  for (int r = 0; r < row_count; ++r) {
    for (std::int64_t i = 0; i < count; ++i) {
      double sum = 0;
      for (std::int64_t c = 0; c < width; ++c) sum += rows[r * width + c] * packed[slots[i] * width + c];
      tile[tile_index(r, i)] = sum;
    }
  }
}

HWY_INLINE void combine(const double* tile, const double* factor, int row_count, const double* packed,
                        const std::uint16_t* slots, std::int64_t count, std::int64_t width, double* out) {
  for (int r = 0; r < row_count; ++r) {
    double* o = out + r * width;
    for (std::int64_t c = 0; c < width; ++c) o[c] *= factor[r * kGroup];
    for (std::int64_t i = 0; i < count; ++i) {
      const double p = tile[tile_index(r, i)];
      for (std::int64_t c = 0; c < width; ++c) o[c] += p * packed[slots[i] * width + c];
    }
  }
}

HWY_INLINE void spread(const double* tile, const double* rows, int row_count, const std::uint16_t* slots,
                       std::int64_t count, std::int64_t width, double* packed) {
  for (int r = 0; r < row_count; ++r) {
    for (std::int64_t i = 0; i < count; ++i) {
      const double p = tile[tile_index(r, i)];
      for (std::int64_t c = 0; c < width; ++c) packed[slots[i] * width + c] += p * rows[r * width + c];
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace gsa
HWY_AFTER_NAMESPACE();

#endif  // GSA_KERNELS_TILE_INL_H_
