// Mean and variance of a query's scores, in an order of summation that does not depend on how work is split,
// so that prefill and decode find the same variance and the same k_t, bit for bit.
//
//   d(s)      = score(s) - shift, shift = the score of position 0 of the sequence (float)
//   chain     : of the 64 positions of a block, chain c = 0 .. 3 adds the d of positions s with
//               (s / 2) % 4 == c (16 of them: what one lane holds of an mma tile) in ascending order from zero:
//               sum = sum + d, square = fma(d, d, square) (float)
//   segment   : 1024 positions, 16 blocks. The block sums of a chain are added in ascending order from zero,
//               then the chains: (c0 + c1) + (c2 + c3) (float)
//   row       : segments in ascending order from zero (double)
//
// Positions that are not visible add nothing. Where all scores are equal every d is zero, hence the variance
// too.
//
// A sum of squares that is NaN means a score that is not finite. One that is infinite may also mean scores
// so large that their squares overflow a float: then the same sums are taken again with chains and segments
// in double, and the scores are looked at themselves.
#pragma once

#include <cstdint>

namespace gsa::cuda {

constexpr int kMomentBlock = 64;
constexpr int kMomentSegment = 1024;

template <typename Real>
struct ScoreSums {
  Real sum = 0;
  Real square = 0;
};

template <typename Real>
__device__ __forceinline__ void add_difference(ScoreSums<Real>& chain, float score, float shift) {
  if constexpr (sizeof(Real) == 4) {
    const float d = __fadd_rn(score, -shift);
    chain.sum = __fadd_rn(chain.sum, d);
    chain.square = __fmaf_rn(d, d, chain.square);
  } else {
    const double d = __dadd_rn(static_cast<double>(score), -static_cast<double>(shift));
    chain.sum = __dadd_rn(chain.sum, d);
    chain.square = __fma_rn(d, d, chain.square);
  }
}

template <typename Real>
__device__ __forceinline__ void add_sums(ScoreSums<Real>& to, const ScoreSums<Real>& from) {
  if constexpr (sizeof(Real) == 4) {
    to.sum = __fadd_rn(to.sum, from.sum);
    to.square = __fadd_rn(to.square, from.square);
  } else {
    to.sum = __dadd_rn(to.sum, from.sum);
    to.square = __dadd_rn(to.square, from.square);
  }
}

// The four chains of a segment, chain c in lane c of each group of four lanes; every lane gets the result.
template <typename Real>
__device__ __forceinline__ ScoreSums<Real> join_chains(ScoreSums<Real> chain) {
#pragma unroll
  for (int step = 1; step <= 2; step *= 2) {
    const ScoreSums<Real> other = {__shfl_xor_sync(0xffffffffu, chain.sum, step),
                                   __shfl_xor_sync(0xffffffffu, chain.square, step)};
    add_sums(chain, other);
  }
  return chain;
}

// One segment more of a row.
template <typename Real>
__device__ __forceinline__ void add_segment(ScoreSums<double>& row, const ScoreSums<Real>& segment) {
  row.sum = __dadd_rn(row.sum, static_cast<double>(segment.sum));
  row.square = __dadd_rn(row.square, static_cast<double>(segment.square));
}

// Population variance; never negative, and NaN where the sums are not finite.
__device__ __forceinline__ double variance_of(const ScoreSums<double>& row, int visible) {
  const double mean = __ddiv_rn(row.sum, static_cast<double>(visible));
  const double square = __ddiv_rn(row.square, static_cast<double>(visible));
  const double variance = __fma_rn(-mean, mean, square);
  return variance < 0 ? 0.0 : variance;
}

// The sums of one segment from stored scores, by one warp. row: the scores of the query from position 0;
// first: the segment's first position; end: positions below it are visible. visit(score) sees every visible
// score of the segment once, in some lane. Every lane gets the result. whole: all of the segment is visible.
template <typename Real, bool whole = false, class Visit>
__device__ __forceinline__ ScoreSums<Real> segment_sums(const float* row, int first, int end, float shift,
                                                        Visit visit) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  ScoreSums<Real> total;  // of chain lane % 4
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int block = first + (8 * half + lane / 4) * kMomentBlock;
    ScoreSums<Real> chain;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int s = block + 8 * j + 2 * (lane % 4) + e;
        if (whole || s < end) {
          const float score = row[s];
          add_difference(chain, score, shift);
          visit(score);
        }
      }
    }
#pragma unroll
    for (int b = 0; b < 8; ++b) {
      const ScoreSums<Real> from = {__shfl_sync(0xffffffffu, chain.sum, 4 * b + lane % 4),
                                    __shfl_sync(0xffffffffu, chain.square, 4 * b + lane % 4)};
      add_sums(total, from);
    }
  }
  return join_chains(total);
}

template <typename Real>
__device__ __forceinline__ ScoreSums<Real> segment_sums(const float* row, int first, int end, float shift) {
  return segment_sums<Real>(row, first, end, shift, [](float) {});
}

}  // namespace gsa::cuda
