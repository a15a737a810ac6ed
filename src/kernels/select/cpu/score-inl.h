// Scores of the indexer for a few queries against a strip of 64 keys (see select.h for the formula).
//
// Keys are transposed into a strip (cpu/strip-inl.h), so that a vector holds one coordinate of many keys: dot
// products need no horizontal sums, and four heads share each load. Every score is computed by the same chain
// of operations wherever its key lies in a strip and however many queries go along. Included once per Highway
// target.
#if defined(GSA_KERNELS_SCORE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GSA_KERNELS_SCORE_INL_H_
#undef GSA_KERNELS_SCORE_INL_H_
#else
#define GSA_KERNELS_SCORE_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "kernels/common/tile-inl.h"
#include "kernels/select/cpu/strip-inl.h"
#include "kernels/select/select.h"

HWY_BEFORE_NAMESPACE();
namespace gsa {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int kHeadsAtOnce = 4;

// One query, ready for scoring: heads in groups of four, coordinates interleaved [group][coordinate][4].
// For the sigmoid form q and bias carry -log2(e), and q the scale, so that e^-x is a power of two. For the
// ReLU form q is as it came: a product that is exactly 0 stays so, where a scaled and rounded q would make it
// 1e-7, and the scale follows.
template <typename T>
struct ScoreQuery {
  const T* q;     // [groups, head_size, 4]
  const T* bias;  // [groups, 4]
  const T* w;     // [groups, 4]
};

inline std::int64_t head_groups(const Indexer& x) { return (x.heads + kHeadsAtOnce - 1) / kHeadsAtOnce; }
inline std::int64_t score_query_size(const Indexer& x) {
  return head_groups(x) * kHeadsAtOnce * (x.head_size + 2);
}

template <typename T>
ScoreQuery<T> load_score_query(const Indexer& x, DType type, std::int64_t query, T* memory) {
  const std::int64_t groups = head_groups(x);
  T* q = memory;
  T* bias = q + groups * kHeadsAtOnce * x.head_size;
  T* w = bias + groups * kHeadsAtOnce;
  std::fill(memory, memory + score_query_size(x), T(0));
  const bool sigmoid = x.form == ScoreForm::sigmoid;
  const T sign = sigmoid ? static_cast<T>(-Base<T>::kLogE) : T(1);
  const T factor = sigmoid ? sign * static_cast<T>(x.scale) : T(1);
  HWY_ALIGN T row[256];
  for (std::int64_t j = 0; j < x.heads; ++j) {
    const std::int64_t group = j / kHeadsAtOnce;
    load_row<T>(row, at(x.q.data, type, query * x.q.token_stride + j * x.q.head_stride), type, x.head_size,
                factor);
    for (std::int64_t c = 0; c < x.head_size; ++c)
      q[(group * x.head_size + c) * kHeadsAtOnce + j % kHeadsAtOnce] = row[c];
    w[j] = load_value<T>(at(x.w.data, type, query * x.w.token_stride + j * x.w.head_stride), type);
    if (x.bias != nullptr) bias[j] = sign * load_value<T>(at(x.bias, type, j), type);
  }
  return {q, bias, w};
}

#if GSA_BF16_PRODUCTS
// One query whose products are those of bfloat16: coordinates in pairs, as they came; factor makes the product what
// the sigmoid or ReLU wants.
template <>
struct ScoreQuery<Bf16> {
  const Bf16* q;      // [groups, pairs, 4, 2]
  const float* bias;  // [groups, 4]
  const float* w;     // [groups, 4]
  float factor;
};

HWY_INLINE std::int64_t coordinate_pairs(const Indexer& x) { return (x.head_size + 1) / 2; }

// memory: score_query_size() floats.
HWY_INLINE ScoreQuery<Bf16> load_pair_query(const Indexer& x, std::int64_t query, float* memory) {
  const std::int64_t groups = head_groups(x), pairs = coordinate_pairs(x);
  std::fill(memory, memory + score_query_size(x), 0.0f);
  float* bias = memory;
  float* w = bias + groups * kHeadsAtOnce;
  Bf16* q = reinterpret_cast<Bf16*>(w + groups * kHeadsAtOnce);
  const bool sigmoid = x.form == ScoreForm::sigmoid;
  const float sign = sigmoid ? static_cast<float>(-Base<float>::kLogE) : 1.0f;
  for (std::int64_t j = 0; j < x.heads; ++j) {
    const void* row = at(x.q.data, DType::bf16, query * x.q.token_stride + j * x.q.head_stride);
    for (std::int64_t c = 0; c < x.head_size; ++c) {
      const std::int64_t place = (j / kHeadsAtOnce * pairs + c / 2) * kHeadsAtOnce + j % kHeadsAtOnce;
      std::memcpy(q + 2 * place + c % 2, static_cast<const Bf16*>(row) + c, sizeof(Bf16));
    }
    w[j] = load_value<float>(at(x.w.data, DType::bf16, query * x.w.token_stride + j * x.w.head_stride),
                             DType::bf16);
    if (x.bias != nullptr) bias[j] = sign * load_value<float>(at(x.bias, DType::bf16, j), DType::bf16);
  }
  return {q, bias, w, sign * static_cast<float>(x.scale)};
}
#endif

// e = 2^y of one head; large y is cut so that products of two stay finite. sigmoid = 1 / (1 + e).
HWY_INLINE FloatVec one_plus_power(FloatVec y) {
  const FloatTag d;
  return hn::Add(hn::Set(d, 1.0f), power_of_two(d, at_most(d, 62.0f, y)));
}

// sum += w0 sigmoid0 + w1 sigmoid1 with one division: (w0 e1 + w1 e0) / (e0 e1), where e = 1 + e^-x.
HWY_INLINE FloatVec add_sigmoids(FloatVec sum, FloatVec y0, FloatVec y1, float w0, float w1) {
  const FloatTag d;
  const FloatVec e0 = one_plus_power(y0);
  const FloatVec e1 = one_plus_power(y1);
  const FloatVec numerator = hn::MulAdd(hn::Set(d, w0), e1, hn::Mul(hn::Set(d, w1), e0));
  return hn::Add(sum, hn::Div(numerator, hn::Mul(e0, e1)));
}

// sum + what one group of heads gives, where y are their arguments.
template <int kHeads>
HWY_INLINE FloatVec add_heads(FloatVec sum, const FloatVec (&y)[kHeads], const float* HWY_RESTRICT w,
                              bool sigmoid) {
  const FloatTag d;
  if (sigmoid) {
    int h = 0;
    for (; h + 2 <= kHeads; h += 2) sum = add_sigmoids(sum, y[h], y[h + 1], w[h], w[h + 1]);
    if (h < kHeads) sum = hn::Add(sum, hn::Div(hn::Set(d, w[h]), one_plus_power(y[h])));
  } else {
    for (int h = 0; h < kHeads; ++h) sum = hn::MulAdd(hn::Set(d, w[h]), at_least(d, 0.0f, y[h]), sum);
  }
  return sum;
}

template <int kHeads>
HWY_INLINE void score_columns(const float* HWY_RESTRICT q, const float* HWY_RESTRICT bias,
                              const float* HWY_RESTRICT w, std::int64_t size, bool sigmoid, float scale,
                              bool first, const float* HWY_RESTRICT strip, const NextStrip& next,
                              float* HWY_RESTRICT scores) {
  const FloatTag d;
  FloatVec acc[kHeads][kColumnsAtOnce];
  for (int h = 0; h < kHeads; ++h) {
    for (int v = 0; v < kColumnsAtOnce; ++v) acc[h][v] = hn::Set(d, sigmoid ? bias[h] : 0.0f);
  }
  for (std::int64_t c = 0; c < size; ++c) {
    next.fetch(c);
    FloatVec k[kColumnsAtOnce];
    for (int v = 0; v < kColumnsAtOnce; ++v) k[v] = hn::Load(d, strip + c * kStrip + v * kLanes);
    for (int h = 0; h < kHeads; ++h) {
      const FloatVec x = hn::Set(d, q[c * kHeadsAtOnce + h]);
      for (int v = 0; v < kColumnsAtOnce; ++v) acc[h][v] = hn::MulAdd(x, k[v], acc[h][v]);
    }
  }
  for (int v = 0; v < kColumnsAtOnce; ++v) {
    const FloatVec sum = first ? hn::Zero(d) : hn::Load(d, scores + v * kLanes);
    FloatVec y[kHeads];
    for (int h = 0; h < kHeads; ++h) {
      y[h] = sigmoid ? acc[h][v] : hn::MulAdd(acc[h][v], hn::Set(d, scale), hn::Set(d, bias[h]));
    }
    hn::Store(add_heads(sum, y, w, sigmoid), d, scores + v * kLanes);
  }
}

// scores[0..64) of one query against a strip; next is asked for meanwhile.
HWY_INLINE void score_strip(const Indexer& x, const ScoreQuery<float>& query, const float* strip,
                            const NextStrip& next, float* scores) {
  const NextStrip nothing;
  for (std::int64_t i = x.head_size; i < kStrip; ++i) next.fetch(i);  // those that no coordinate brings along
  const bool sigmoid = x.form == ScoreForm::sigmoid;
  const float scale = static_cast<float>(x.scale);
  for (std::int64_t group = 0; group < head_groups(x); ++group) {
    const float* q = query.q + group * kHeadsAtOnce * x.head_size;
    const float* bias = query.bias + group * kHeadsAtOnce;
    const float* w = query.w + group * kHeadsAtOnce;
    const bool first = group == 0;
    const std::int64_t heads = std::min<std::int64_t>(kHeadsAtOnce, x.heads - group * kHeadsAtOnce);
    for (std::int64_t i = 0; i < kStrip; i += kColumnsAtOnce * kLanes) {
      switch (heads) {
        case 1:
          score_columns<1>(q, bias, w, x.head_size, sigmoid, scale, first, strip + i,
                           i == 0 && first ? next : nothing, scores + i);
          break;
        case 2:
          score_columns<2>(q, bias, w, x.head_size, sigmoid, scale, first, strip + i,
                           i == 0 && first ? next : nothing, scores + i);
          break;
        case 3:
          score_columns<3>(q, bias, w, x.head_size, sigmoid, scale, first, strip + i,
                           i == 0 && first ? next : nothing, scores + i);
          break;
        default:
          score_columns<4>(q, bias, w, x.head_size, sigmoid, scale, first, strip + i,
                           i == 0 && first ? next : nothing, scores + i);
          break;
      }
    }
  }
}

#if GSA_BF16_PRODUCTS
#pragma GCC push_options
#pragma GCC target("avx512bf16")
template <int kHeads>
HWY_INLINE void score_pairs(const Bf16* HWY_RESTRICT q, const float* HWY_RESTRICT bias,
                            const float* HWY_RESTRICT w, std::int64_t pairs, bool sigmoid, float factor,
                            bool first, const std::uint32_t* HWY_RESTRICT strip, const NextStrip& next,
                            float* HWY_RESTRICT scores) {
  const FloatTag d;
  FloatVec acc[kHeads][kColumnsAtOnce];
  for (int h = 0; h < kHeads; ++h) {
    for (int v = 0; v < kColumnsAtOnce; ++v) acc[h][v] = hn::Zero(d);
  }
  for (std::int64_t c = 0; c < pairs; ++c) {
    next.fetch(2 * c);
    next.fetch(2 * c + 1);
    __m512i k[kColumnsAtOnce];
    for (int v = 0; v < kColumnsAtOnce; ++v) k[v] = _mm512_load_si512(strip + c * kStrip + v * kLanes);
    for (int h = 0; h < kHeads; ++h) {
      const __m512i x = bf16::both(q + 2 * (c * kHeadsAtOnce + h));
      for (int v = 0; v < kColumnsAtOnce; ++v) acc[h][v].raw = bf16::add_products(acc[h][v].raw, x, k[v]);
    }
  }
  for (int v = 0; v < kColumnsAtOnce; ++v) {
    const FloatVec sum = first ? hn::Zero(d) : hn::Load(d, scores + v * kLanes);
    FloatVec y[kHeads];
    for (int h = 0; h < kHeads; ++h) y[h] = hn::MulAdd(acc[h][v], hn::Set(d, factor), hn::Set(d, bias[h]));
    hn::Store(add_heads(sum, y, w, sigmoid), d, scores + v * kLanes);
  }
}

// Not inlined: the caller is compiled without the extension.
HWY_NOINLINE inline void score_strip(const Indexer& x, const ScoreQuery<Bf16>& query,
                                     const std::uint32_t* strip, const NextStrip& next, float* scores) {
  static_assert(kColumnsAtOnce * kLanes == kStrip);
  const NextStrip nothing;
  const std::int64_t pairs = coordinate_pairs(x);
  for (std::int64_t i = 2 * pairs; i < kStrip; ++i) next.fetch(i);  // those that no coordinate brings along
  const bool sigmoid = x.form == ScoreForm::sigmoid;
  for (std::int64_t group = 0; group < head_groups(x); ++group) {
    const Bf16* q = query.q + 2 * group * kHeadsAtOnce * pairs;
    const float* bias = query.bias + group * kHeadsAtOnce;
    const float* w = query.w + group * kHeadsAtOnce;
    const bool first = group == 0;
    const NextStrip& ahead = first ? next : nothing;
    switch (std::min<std::int64_t>(kHeadsAtOnce, x.heads - group * kHeadsAtOnce)) {
      case 1:
        score_pairs<1>(q, bias, w, pairs, sigmoid, query.factor, first, strip, ahead, scores);
        break;
      case 2:
        score_pairs<2>(q, bias, w, pairs, sigmoid, query.factor, first, strip, ahead, scores);
        break;
      case 3:
        score_pairs<3>(q, bias, w, pairs, sigmoid, query.factor, first, strip, ahead, scores);
        break;
      default:
        score_pairs<4>(q, bias, w, pairs, sigmoid, query.factor, first, strip, ahead, scores);
        break;
    }
  }
}
#pragma GCC pop_options
#endif

HWY_INLINE void score_strip(const Indexer& x, const ScoreQuery<double>& query, const double* strip,
                            const NextStrip&, double* scores) {
  const bool sigmoid = x.form == ScoreForm::sigmoid;
  for (std::int64_t i = 0; i < kStrip; ++i) {
    double sum = 0;
    for (std::int64_t j = 0; j < x.heads; ++j) {
      const double* q = query.q + j / kHeadsAtOnce * kHeadsAtOnce * x.head_size + j % kHeadsAtOnce;
      double y = sigmoid ? query.bias[j] : 0;
      for (std::int64_t c = 0; c < x.head_size; ++c) y += q[c * kHeadsAtOnce] * strip[c * kStrip + i];
      if (!sigmoid) y = y * x.scale + query.bias[j];
      // The comparison keeps NaN, which std::max would not.
      sum += query.w[j] * (sigmoid ? 1 / (1 + power(y)) : (y < 0 ? 0 : y));
    }
    scores[i] = sum;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace gsa
HWY_AFTER_NAMESPACE();

#endif  // GSA_KERNELS_SCORE_INL_H_
