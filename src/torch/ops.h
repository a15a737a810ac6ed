// The operators of namespace gsa as C++ functions. Each one calls the registered operator of the same name
// through the dispatcher, so autograd, torch.compile and torch.ops.gsa.* in Python see the same thing.
// What arguments mean is in schema.h, the schema of an operator in <operator>.cc.
//
// Shapes: B sequences of L tokens, or packed: [B, L] below is then one dimension [T], and cu_seqlens_q,
// cu_seqlens_k (int64 or int32 [sequences + 1], on the CPU) say where sequences start. q_position (int64 or
// int32 [sequences], on the CPU) is the position of the first query of each sequence; without it the last
// query sees the last key.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

namespace gsa::ops {

using at::Tensor;
using OptTensor = std::optional<Tensor>;

struct Layout {
  OptTensor cu_seqlens_q, cu_seqlens_k, q_position;
};

struct IndexerInputs {
  Tensor q;        // [B, L, H_I, d_I]
  Tensor k;        // [B, S, d_I]
  Tensor w;        // [B, L, H_I]
  OptTensor bias;  // [H_I]
  double scale = 1;
  std::string form = "sigmoid";  // or "relu"
};

struct BudgetOptions {
  std::string mode = "inverse";  // or "proportional", "fixed"
  std::int64_t base = 2048, min = 256, max = 4096;
  OptTensor mean_variance;  // one element, float64 or float32; absent or negative: not known yet, k_t = base
};

struct Selection {
  Tensor mask;       // int32 [B, L, ceil(S / 32)]; not of sparse_attend()
  Tensor k_t;        // int32 [B, L]
  Tensor variance;   // Real [B, L]; Real is float32, float64 for float64 inputs
  Tensor threshold;  // Real [B, L]
  Tensor tie_cut;    // int32 [B, L]
};

struct Attention {
  Tensor out;  // [B, L, n_h, d]
  Tensor lse;  // Real [B, L, n_h], not differentiable
};

struct SparseAttention {
  Attention attention;
  Selection selection;  // mask undefined, unless it was asked for
};

struct KlLoss {
  Tensor loss;       // Real [B, L]: one KL per query, differentiable in the indexer's inputs
  Tensor index_lse;  // Real [B, L], not differentiable
};

Selection select(const IndexerInputs& indexer, const BudgetOptions& budget, const Layout& layout = {});
Tensor select_mask(const IndexerInputs& indexer, const Tensor& threshold, const Tensor& tie_cut,
                   const Layout& layout = {});
Tensor index_scores(const IndexerInputs& indexer, const Layout& layout = {});

// mask absent: dense causal attention. scale absent: 1/sqrt(d). accumulation, of the backward pass:
// "ordered", or "atomic", which is faster on a GPU and not reproducible from run to run.
Attention attend(const Tensor& q, const Tensor& k, const Tensor& v, const OptTensor& mask = {},
                 std::optional<double> scale = {}, const Layout& layout = {},
                 const std::string& accumulation = "ordered");

struct AttentionGradients {
  Tensor dq, dk, dv;  // as q, k, v
};
// For who computes `out` and `lse` elsewhere, over every visible key of a padded batch.
AttentionGradients attend_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                                   const Attention& attention, const std::string& accumulation = "ordered");

// The lse of dense attention alone: Real [B, L, n_h]. query_tiles: int64 or int32 on the CPU, ascending
// numbers of the tiles (kQueryTile in gsa/tensor_view.h) whose queries are wanted, the others get 0; absent:
// every query. No gradient: call it under torch::NoGradGuard, or detach q and k.
Tensor attend_lse(const Tensor& q, const Tensor& k, const OptTensor& query_tiles = {},
                  std::optional<double> scale = {}, const Layout& layout = {});

// select and attend in chunks of queries: memory linear in the length, forward and backward (masks are
// rebuilt from thresholds). Differentiable in q, k, v; the selection passes no gradient.
SparseAttention sparse_attend(const Tensor& q, const Tensor& k, const Tensor& v, const IndexerInputs& indexer,
                              const BudgetOptions& budget, std::optional<double> scale = {},
                              const Layout& layout = {}, const std::string& accumulation = "ordered");
// The same, with the mask of the selection, which the backward pass reads instead of rebuilding it.
SparseAttention sparse_attend_with_mask(const Tensor& q, const Tensor& k, const Tensor& v,
                                        const IndexerInputs& indexer, const BudgetOptions& budget,
                                        std::optional<double> scale = {}, const Layout& layout = {},
                                        const std::string& accumulation = "ordered");

// The newest queries of each sequence against a paged cache; shapes in decode.cc. No gradient.
struct PagedCache {
  Tensor k, v;                  // [pages, page_size, n_kv, d]
  OptTensor index_k;            // [pages, page_size, d_I]; int8 where index_k_scale is given
  Tensor block_table;           // int32 [B, blocks]
  Tensor lengths;               // int32 [B]: keys, those of the queries included
  std::int64_t max_length = 0;  // no sequence is longer
  OptTensor index_k_scale;      // float32 [pages, page_size]: the key is index_k * scale
};
struct Decoded {
  Tensor out;  // [B, L, n_h, d], gated
  Tensor lse;  // Real [B, L, n_h]
  Tensor k_t;  // int32 [B, L]
};
// indexer absent: every visible key; its k is that of the cache.
Decoded decode(const Tensor& q, const PagedCache& cache, const std::optional<IndexerInputs>& indexer,
               const BudgetOptions& budget, const OptTensor& gate = {}, std::optional<double> scale = {});

// A selection that layers share: the one with an indexer makes it, the others attend by it.
struct SelectedPositions {
  Tensor positions;  // int32 [B, L, W]: ascending, then -1
  Tensor k_t;        // int32 [B, L]: how many
};
struct DecodedSelection {
  Decoded decoded;
  SelectedPositions selection;  // W = min(max_length, budget.max)
};
DecodedSelection decode_with_selection(const Tensor& q, const PagedCache& cache, const IndexerInputs& indexer,
                                       const BudgetOptions& budget, const OptTensor& gate = {},
                                       std::optional<double> scale = {});
// Of the cache, index_k is not used.
Decoded decode_selected(const Tensor& q, const PagedCache& cache, const SelectedPositions& selection,
                        const OptTensor& gate = {}, std::optional<double> scale = {});

// Keys [..., d_I] as eight-bit numbers, for the cache: values int8 as keys, scale float32 [...].
struct QuantizedKeys {
  Tensor values, scale;
};
QuantizedKeys quantize_index_keys(const Tensor& keys);

// y = x * sigmoid(z). x [..., heads, d]; z as x, or [..., heads] for one gate a head.
Tensor gate(const Tensor& x, const Tensor& z);

// Support: threshold and tie_cut of a selection, or a mask, or (neither) every visible key. query_tiles, as
// of attend_lse, go with the latter: other queries have loss 0.
KlLoss indexer_kl(const Tensor& q, const Tensor& k, const Tensor& lse, const IndexerInputs& indexer,
                  const OptTensor& mask = {}, const OptTensor& threshold = {}, const OptTensor& tie_cut = {},
                  std::optional<double> scale = {}, const Layout& layout = {},
                  const OptTensor& query_tiles = {});

// ---- What a training step calls between its matrix products, each one pass over memory
// (docs/kernels/fused.md)

struct Normed {
  Tensor y;    // as x: normalised
  Tensor sum;  // as x: the residual stream, x + branch (x itself where there is no branch)
};
// x [..., d], branch as x, weight [d]. Differentiable in all three; the gradient that reaches sum is added
// where the norm's own is formed.
Normed rms_norm(const Tensor& x, const OptTensor& branch, const Tensor& weight, double eps);

struct Rotated {
  Tensor q, k, v;  // [T, heads, head_size]; v has no heads where v_heads is 0
};
// x [T, (q_heads + k_heads + v_heads) head_size], cos and sin Real [T, pairs]. Differentiable in x.
Rotated rotary(const Tensor& x, const Tensor& cos, const Tensor& sin, std::int64_t q_heads,
               std::int64_t k_heads, std::int64_t v_heads);

// silu(g) u for x = [g | u], [..., 2 n] -> [..., n]. Differentiable.
Tensor swiglu(const Tensor& x);

// The loss of each row of logits [T, classes], Real [T], for targets int64 [T]; a row whose target is
// `ignored` counts 0. With gradient, logits become the loss's derivative. No autograd.
Tensor cross_entropy_(Tensor& logits, const Tensor& targets, std::int64_t ignored, bool gradient);

struct AdamWStep {
  double lr = 0, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, decay = 0;
  double factor = 1;        // of the gradient
  std::int64_t number = 1;  // of the parameter's steps, this one included
};
// One step of AdamW in one pass: master, mean and square (float32) in place; weight, where there is one apart
// from the master, gets the result rounded. gradient: float32, bfloat16 or float16.
void adamw_(const Tensor& master, const Tensor& mean, const Tensor& square, const OptTensor& weight,
            const Tensor& gradient, const AdamWStep& step);

// ---- What a decoding step calls beside attention

// The cache's new rows, from the product of a layer's input with every matrix that reads it (append.cc).
struct AppendInputs {
  Tensor x;                        // [T, columns], rows of any stride
  Tensor cos, sin;                 // Real [T, pairs]
  OptTensor index_cos, index_sin;  // Real [T, index pairs], where there is an indexer
  Tensor slots;                    // int64 [T]: page * page_size + row
  Tensor k, v;                     // [pages, page_size, n_kv, d], written
  OptTensor index_k;               // [pages, page_size, d_I], written; int8 with a scale
  OptTensor index_k_scale;         // float32 [pages, page_size], written
  std::int64_t q_heads = 0, index_heads = 0;
  std::int64_t value_gate = 0;      // columns of the gate: 0, n_kv or n_kv d
  std::int64_t index_w_column = 0;  // where the indexer's weights begin
  bool sigmoid_w = true;            // of the indexer's weights; false: divided by sqrt(H_I)
};
struct Appended {
  Tensor q;                 // [T, n_h, d]
  Tensor index_q, index_w;  // [T, H_I, d_I], [T, H_I]; no elements without an indexer
};
Appended append(const AppendInputs& inputs);

// A skinny GEMM: the product of a few rows with a matrix, and what stands around it
// (kernels/skinny_linear/skinny_linear.h).
struct SkinnyLinearInputs {
  Tensor x;                 // [rows, size]
  Tensor weight;            // [outputs, size]; with swiglu [2 outputs, size]
  OptTensor norm = {};      // [size]: x is normalised first
  OptTensor bias = {};      // [outputs]
  OptTensor residual = {};  // [rows, outputs], added to the result
  double eps = 0;           // of the norm
  bool swiglu = false;
  bool settled = false;  // norm, weight and bias were there before the last kernels on the stream began
};
Tensor skinny_linear(const SkinnyLinearInputs& inputs);  // [rows, outputs]

// Whether there is a kernel for such a product: few rows of 16 bits on a Hopper GPU.
bool skinny_linear_serves(const at::Device& device, at::ScalarType type, std::int64_t rows, std::int64_t size,
                          bool norm);

// The names that these had; for one release.
using FewLinearInputs [[deprecated("use SkinnyLinearInputs")]] = SkinnyLinearInputs;
[[deprecated("use skinny_linear")]] inline Tensor few_linear(const SkinnyLinearInputs& inputs) {
  return skinny_linear(inputs);
}
[[deprecated("use skinny_linear_serves")]] inline bool few_linear_serves(const at::Device& device,
                                                                         at::ScalarType type,
                                                                         std::int64_t rows, std::int64_t size,
                                                                         bool norm) {
  return skinny_linear_serves(device, type, rows, size, norm);
}

// Whether this library holds the operators for CUDA tensors.
bool built_with_cuda();

}  // namespace gsa::ops
