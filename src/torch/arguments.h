// Groups of operator arguments, checked together and turned into what kernels take. Each Bound struct keeps
// alive the tensors (or copies of them) that its view points into.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "kernels/attend/attend.h"
#include "kernels/select/select.h"
#include "torch/layout.h"
#include "torch/ops.h"
#include "torch/rows.h"

namespace gsa::binding {

// The arguments are named q, k, w, bias where the indexer stands alone, index_q ... beside an attention.
struct IndexerNames {
  const char* q;
  const char* k;
  const char* w;
  const char* bias;
  const char* scale;
};
constexpr IndexerNames kPlainNames{"q", "k", "w", "bias", "scale"};
constexpr IndexerNames kIndexNames{"index_q", "index_k", "index_w", "index_bias", "index_scale"};

struct IndexerTensors {
  const Tensor& q;  // [tokens..., H_I, d_I]
  const Tensor& k;  // [tokens..., d_I]
  const Tensor& w;  // [tokens..., H_I]
  const OptTensor& bias;
  double scale;
  std::string_view form;
};

void check_indexer_ranks(const char* op, const IndexerNames& names, const IndexerTensors& tensors,
                         const LayoutTensors& layout);

struct BoundIndexer {
  DType dtype;
  Indexer view;
  BoundRows q, k, w;
  Tensor bias;
};
BoundIndexer bind_indexer(const char* op, const IndexerNames& names, const IndexerTensors& tensors,
                          const TokenLayout& layout);

// The same for keys that lie in pages: they are checked (of this type, or of q's for none) and left where
// they lie, k of the view and of the result stay empty.
BoundIndexer bind_indexer_but_keys(const char* op, const IndexerNames& names, const IndexerTensors& tensors,
                                   const TokenLayout& layout, std::optional<at::ScalarType> key_type = {});

struct BudgetTensors {
  std::string_view mode;
  std::int64_t base, min, max;
  const OptTensor& mean_variance;
};
struct BoundBudget {
  Budget view;
  Tensor mean_variance;  // where it lies on a CUDA device, from where kernels read it: nothing waits for it

  // No query selects more keys than this.
  std::int64_t max_selected() const;
};
BoundBudget bind_budget(const char* op, const BudgetTensors& tensors, const at::Device& device);

void check_attention_ranks(const char* op, const Tensor& q, const Tensor& k, const LayoutTensors& layout);

// v may be null: indexer_kl reads no values.
struct BoundAttention {
  AttendShape shape;
  BoundRows q, k, v;
};
BoundAttention bind_attention(const char* op, const Tensor& q, const Tensor& k, const Tensor* v,
                              std::optional<double> scale, const TokenLayout& layout);

// The checks alone: nothing is copied, whatever the strides.
AttendShape attention_shape(const char* op, const Tensor& q, const Tensor& k, const Tensor* v,
                            std::optional<double> scale, const TokenLayout& layout);

// Attention beside its indexer, of one layout and one type: what sparse_attend and indexer_kl read.
struct BoundLayer {
  TokenLayout layout;
  BoundAttention attention;
  BoundIndexer indexer;
};
BoundLayer bind_layer(const char* op, const Tensor& q, const Tensor& k, const Tensor* v,
                      std::optional<double> scale, const IndexerTensors& indexer,
                      const LayoutTensors& layout);

// An int32 mask of the layout's width (packed: at least the width of the longest sequence). A bit beyond the
// position of its query would let it see the future, or memory that is not its own: an error on the CPU; on a
// CUDA device, where nobody waits to look, kernels pass over it.
struct BoundMask {
  Tensor tensor;
  ConstMask view;
};
// Positions a row of a mask (or of scores) has room for: the keys of the longest sequence, or max_keys.
std::int64_t row_width(const char* op, const TokenLayout& layout, const std::optional<c10::SymInt>& max_keys);
BoundMask bind_mask(const char* op, const OptTensor& mask, const TokenLayout& layout);

// A sample of the queries. The kernels read the numbers on the host, on every device.
struct BoundTiles {
  bool every = true;
  std::vector<std::int32_t> numbers;

  QueryTiles view() const;
};
BoundTiles bind_query_tiles(const char* op, const OptTensor& query_tiles, const TokenLayout& layout);

// The arguments of a C++ function (ops.h) as those of the operator.
inline LayoutTensors tensors_of(const ops::Layout& layout) {
  return {.cu_seqlens_q = layout.cu_seqlens_q,
          .cu_seqlens_k = layout.cu_seqlens_k,
          .q_position = layout.q_position};
}
inline IndexerTensors tensors_of(const ops::IndexerInputs& in) {
  return {.q = in.q, .k = in.k, .w = in.w, .bias = in.bias, .scale = in.scale, .form = in.form};
}
inline BudgetTensors tensors_of(const ops::BudgetOptions& options) {
  return {.mode = options.mode,
          .base = options.base,
          .min = options.min,
          .max = options.max,
          .mean_variance = options.mean_variance};
}

// A Real or int32 tensor with one number (or heads numbers) a query, contiguous.
Tensor bind_per_query(const char* op, const char* argument, const Tensor& tensor, at::ScalarType type,
                      const TokenLayout& layout, std::initializer_list<std::int64_t> tail = {});

// Cosines and sines of positions, Real [tokens, pairs] with at most head_size / 2 pairs.
struct RotaryTables {
  const char* cos_name;
  const Tensor& cos;
  const char* sin_name;
  const Tensor& sin;
};
void check_rotary_tables(const char* op, const RotaryTables& tables, std::int64_t tokens,
                         std::int64_t head_size, at::ScalarType real, const at::Device& device);

}  // namespace gsa::binding
