// append as a C++ function, and its arguments for the kernels of either device.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

#include "kernels/append/append.h"

namespace gsa::ops {

struct AppendInputs {
  at::Tensor x;                                    // [T, columns], rows of any stride
  at::Tensor cos, sin;                             // Real [T, pairs]
  std::optional<at::Tensor> index_cos, index_sin;  // Real [T, index pairs], where there is an indexer
  at::Tensor slots;                                // int64 [T]: page * page_size + row
  at::Tensor k, v;                                 // [pages, page_size, n_kv, d], written
  std::optional<at::Tensor> index_k;               // [pages, page_size, d_I], written; int8 with a scale
  std::optional<at::Tensor> index_k_scale;         // float32 [pages, page_size], written
  std::int64_t q_heads = 0, index_heads = 0;
  std::int64_t value_gate = 0;      // columns of the gate: 0, n_kv or n_kv d
  std::int64_t index_w_column = 0;  // where the indexer's weights begin
  bool sigmoid_w = true;            // of the indexer's weights; false: divided by sqrt(H_I)
};
struct Appended {
  at::Tensor q;                 // [T, n_h, d]
  at::Tensor index_q, index_w;  // [T, H_I, d_I], [T, H_I]; no elements without an indexer
};
Appended append(const AppendInputs& inputs);

}  // namespace gsa::ops

namespace gsa::binding {

struct BoundAppend {
  at::Tensor x, cos, sin, index_cos, index_sin, slots;  // what args point into
  AppendArgs args;
  ops::Appended results;
};
BoundAppend bind_append(const ops::AppendInputs& inputs);

// The function to register for a device: `run` binds the arguments and calls that device's kernels.
template <BoundAppend (*run)(const ops::AppendInputs& inputs)>
std::tuple<at::Tensor, at::Tensor, at::Tensor> append_by(
    const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
    const std::optional<at::Tensor>& index_cos, const std::optional<at::Tensor>& index_sin,
    const at::Tensor& slots, const at::Tensor& k, const at::Tensor& v,
    const std::optional<at::Tensor>& index_k, const std::optional<at::Tensor>& index_k_scale,
    std::int64_t q_heads, std::int64_t index_heads, std::int64_t value_gate, std::int64_t index_w_column,
    bool sigmoid_w) {
  const ops::Appended results = run({x, cos, sin, index_cos, index_sin, slots, k, v, index_k, index_k_scale,
                                     q_heads, index_heads, value_gate, index_w_column, sigmoid_w})
                                    .results;
  return {results.q, results.index_q, results.index_w};
}

}  // namespace gsa::binding
