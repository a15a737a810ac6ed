// attend: softmax attention of each query over its selected keys.
//
//   a[t,h,s] = scale * (q[t,h] . k[s,h/G])      s in S_t,  G = heads / kv_heads
//   lse[t,h] = log sum_s exp(a[t,h,s])
//   out[t,h] = sum_s exp(a[t,h,s] - lse[t,h]) v[s,h/G]
//
// S_t comes as a bit mask; without one, S_t is every visible key (dense causal attention). A query with an
// empty S_t gets NaN in out and lse. Keys that a query did not select take no part in its arithmetic, so NaN
// in them goes nowhere. Bits of a query depend on nothing but that query, its selection and the selected
// keys.
#pragma once

#include <cstdint>

#include "core/parallel.h"
#include "gsa/dtype.h"
#include "gsa/tensor_view.h"
#include "kernels/attention/attend_shape.h"

namespace gsa {

// Real below is float, and double when dtype is f64.
struct AttendArgs {
  AttendShape shape;
  ConstRows q;     // [queries, heads, head_size]
  ConstRows k;     // [keys, kv_heads, head_size]
  ConstRows v;     // [keys, kv_heads, head_size]
  ConstMask mask;  // words null: every visible key
  Sequences sequences;
  PageTable pages = {};  // page_size > 0, on the CPU: k and v lie in pages. The same bits as contiguous ones

  Rows out;             // [queries, heads, head_size]
  void* lse = nullptr;  // Real [queries, heads], may be null
};

void attend(const AttendArgs& args, const Parallel& parallel);

// With P = exp(a - lse), dP = dout . v, delta = sum over the head of dout * out:
//   dv[s] += P dout,  da = P (dP - delta) scale,  dq = da k,  dk[s] += da q
struct AttendBackwardArgs {
  AttendShape shape;
  ConstRows q;
  ConstRows k;
  ConstRows v;
  ConstMask mask;
  Sequences sequences;
  ConstRows out;              // what attend() wrote
  const void* lse = nullptr;  // Real [queries, heads], what attend() wrote
  ConstRows dout;             // [queries, heads, head_size]

  Rows dq;             // [queries, heads, head_size], overwritten
  void* dk = nullptr;  // Real [keys, kv_heads, head_size], contiguous, added to
  void* dv = nullptr;  // Real [keys, kv_heads, head_size], contiguous, added to
};

// Deterministic: sums over queries run in an order fixed by the sequence's own shape.
void attend_backward(const AttendBackwardArgs& args, const Parallel& parallel);

}  // namespace gsa
