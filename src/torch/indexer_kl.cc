// indexer_kl and its backward pass. A support given by thresholds is rebuilt a chunk of queries at
// a time, as in sparse_attend.cc; one given by a mask, or all visible keys (of every query or of a sample),
// runs in one chunk.
#include "gsa/error.h"
#include "torch/arguments.h"
#include "torch/backend.h"
#include "torch/chunks.h"
#include "torch/fake.h"
#include "torch/gradient.h"
#include "torch/operators.h"
#include "torch/ops.h"
#include "torch/schema.h"

namespace gsa::binding {

TORCH_LIBRARY_FRAGMENT(gsa, m) {
  using namespace schema;
  // KL(attention averaged over heads || softmax of the indexer's scores) for each query: loss and index_lse
  // are Real [B, L]. The support is that of threshold and tie_cut (rebuilt chunk by chunk), or of mask, or
  // (none of them) every visible key; lse is that of the attention over the same support. With query_tiles,
  // which need every visible key for a support, queries outside them have loss and index_lse 0 and teach
  // nothing. Differentiable in index_q, index_k, index_w, index_bias; the attention is a constant.
  define(m, "indexer_kl(Tensor q, Tensor k, Tensor lse, ", kIndexTensors, "=None, Tensor? mask=None, ",
         "Tensor? threshold=None, Tensor? tie_cut=None, *, ", kTiles, ", float? scale=None, ", kIndexScores,
         ", ", kLayout, ") -> (Tensor loss, Tensor index_lse)");
  // dloss Real [B, L]. dindex_bias is [0] where there is no index_bias.
  define(m, "indexer_kl_backward(Tensor dloss, Tensor q, Tensor k, Tensor lse, ", kIndexTensors,
         ", Tensor? mask, Tensor? threshold, Tensor? tie_cut, Tensor index_lse, *, ", kTiles,
         ", float? scale=None, ", kIndexScores, ", ", kLayout,
         ") -> (Tensor dindex_q, Tensor dindex_k, Tensor dindex_w, Tensor dindex_bias)");
}

namespace {

// ---- Arguments

struct KlArguments {
  const Tensor& q;
  const Tensor& k;
  const Tensor& lse;
  IndexerTensors indexer;
  const OptTensor& mask;
  const OptTensor& threshold;
  const OptTensor& tie_cut;
  const OptTensor& query_tiles;
  std::optional<double> scale;
  LayoutTensors layout;
};

// The registered signature; `run` is the implementation, the fake kernel or the gradient.
template <Tensor2 (*run)(const KlArguments& in)>
Tensor2 indexer_kl_by(const Tensor& q, const Tensor& k, const Tensor& lse, const Tensor& index_q,
                      const Tensor& index_k, const Tensor& index_w, const OptTensor& index_bias,
                      const OptTensor& mask, const OptTensor& threshold, const OptTensor& tie_cut,
                      const OptTensor& query_tiles, std::optional<double> scale, double index_scale,
                      std::string_view form, const OptTensor& cu_seqlens_q, const OptTensor& cu_seqlens_k,
                      const OptTensor& q_position) {
  return run(
      {.q = q,
       .k = k,
       .lse = lse,
       .indexer =
           {.q = index_q, .k = index_k, .w = index_w, .bias = index_bias, .scale = index_scale, .form = form},
       .mask = mask,
       .threshold = threshold,
       .tie_cut = tie_cut,
       .query_tiles = query_tiles,
       .scale = scale,
       .layout = {cu_seqlens_q, cu_seqlens_k, q_position}});
}

Tensor2 call_indexer_kl(const KlArguments& in) {
  static const auto op = find_operator<decltype(indexer_kl_by<nullptr>)>("gsa::indexer_kl");
  return op.call(in.q, in.k, in.lse, in.indexer.q, in.indexer.k, in.indexer.w, in.indexer.bias, in.mask,
                 in.threshold, in.tie_cut, in.query_tiles, in.scale, in.indexer.scale, in.indexer.form,
                 in.layout.cu_seqlens_q, in.layout.cu_seqlens_k, in.layout.q_position);
}

// The same for the backward pass: what the forward pass was given, and what it made.
struct KlBackwardArguments {
  const Tensor& dloss;
  KlArguments forward;
  const Tensor& index_lse;
};

template <Tensor4 (*run)(const KlBackwardArguments& in)>
Tensor4 indexer_kl_backward_by(const Tensor& dloss, const Tensor& q, const Tensor& k, const Tensor& lse,
                               const Tensor& index_q, const Tensor& index_k, const Tensor& index_w,
                               const OptTensor& index_bias, const OptTensor& mask, const OptTensor& threshold,
                               const OptTensor& tie_cut, const Tensor& index_lse,
                               const OptTensor& query_tiles, std::optional<double> scale, double index_scale,
                               std::string_view form, const OptTensor& cu_seqlens_q,
                               const OptTensor& cu_seqlens_k, const OptTensor& q_position) {
  return run({.dloss = dloss,
              .forward = {.q = q,
                          .k = k,
                          .lse = lse,
                          .indexer = {.q = index_q,
                                      .k = index_k,
                                      .w = index_w,
                                      .bias = index_bias,
                                      .scale = index_scale,
                                      .form = form},
                          .mask = mask,
                          .threshold = threshold,
                          .tie_cut = tie_cut,
                          .query_tiles = query_tiles,
                          .scale = scale,
                          .layout = {cu_seqlens_q, cu_seqlens_k, q_position}},
              .index_lse = index_lse});
}

Tensor4 call_indexer_kl_backward(const KlBackwardArguments& in) {
  static const auto op = find_operator<decltype(indexer_kl_backward_by<nullptr>)>("gsa::indexer_kl_backward");
  const auto& [q, k, lse, indexer, mask, threshold, tie_cut, query_tiles, scale, layout] = in.forward;
  return op.call(in.dloss, q, k, lse, indexer.q, indexer.k, indexer.w, indexer.bias, mask, threshold, tie_cut,
                 in.index_lse, query_tiles, scale, indexer.scale, indexer.form, layout.cu_seqlens_q,
                 layout.cu_seqlens_k, layout.q_position);
}

struct BoundKl : BoundLayer {
  std::unique_ptr<Backend> backend;
  BoundMask mask;
  BoundTiles tiles;
  Tensor lse, threshold, tie_cut;

  at::ScalarType real() const { return real_type(attention.shape.dtype); }
  std::int64_t real_size() const { return static_cast<std::int64_t>(c10::elementSize(real())); }
};

void check_support(const char* op, const KlArguments& in) {
  if (in.threshold.has_value() != in.tie_cut.has_value()) {
    bad_argument(op, in.threshold ? "tie_cut" : "threshold", "threshold and tie_cut together, or neither",
                 "None");
  }
  if (in.mask && in.threshold) {
    bad_argument(op, "threshold", "None beside a mask: one of them gives the support", "a tensor");
  }
  if (in.query_tiles && (in.mask || in.threshold)) {
    bad_argument(op, "query_tiles",
                 concat("None beside ", in.mask ? "a mask" : "thresholds",
                        ": the support of a sample is every visible key"),
                 "a tensor");
  }
}

BoundKl bind_kl(const char* op, const KlArguments& in) {
  check_support(op, in);
  BoundKl bound;
  static_cast<BoundLayer&>(bound) = bind_layer(op, in.q, in.k, nullptr, in.scale, in.indexer, in.layout);
  bound.backend = backend_of(in.q);
  bound.lse = bind_per_query(op, "lse", in.lse, bound.real(), bound.layout, {bound.attention.shape.heads});
  bound.mask = bind_mask(op, in.mask, bound.layout);
  bound.tiles = bind_query_tiles(op, in.query_tiles, bound.layout);
  if (in.threshold) {
    bound.threshold = bind_per_query(op, "threshold", *in.threshold, bound.real(), bound.layout);
    bound.tie_cut = bind_per_query(op, "tie_cut", *in.tie_cut, at::kInt, bound.layout);
  }
  return bound;
}

// ---- Implementation

// Calls run(inputs, chunk) for each chunk; without thresholds there is one chunk that holds everything.
template <typename Run>
void for_each_chunk(const char* op, const BoundKl& bound, const Run& run) {
  const AttendShape& shape = bound.attention.shape;
  if (bound.layout.queries() == 0) return;
  if (!bound.threshold.defined()) {
    Chunk whole;
    whole.table = bound.layout.table;
    run(IndexerKlInputs{.shape = shape,
                        .q = bound.attention.q.rows,
                        .k = bound.attention.k.rows,
                        .lse = bound.lse.const_data_ptr(),
                        .indexer = bound.indexer.view,
                        .mask = bound.mask.view,
                        .sequences = whole.table.view(),
                        .tiles = bound.tiles.view()},
        whole);
    return;
  }
  const std::vector<Chunk> chunks = plan_chunks(bound.layout.table.view(), bound.backend->chunk_limits());
  const ChunkMask masks(op, chunks, bound.layout.device);
  for (const Chunk& chunk : chunks) {
    const Mask mask = masks.of(chunk);
    const Indexer indexer = part_of(bound.indexer.view, chunk, shape.dtype);
    bound.backend->select_mask(
        {.dtype = shape.dtype,
         .indexer = indexer,
         .sequences = chunk.table.view(),
         .threshold = shifted(bound.threshold.const_data_ptr(), chunk.q_first, bound.real_size()),
         .tie_cut = bound.tie_cut.const_data_ptr<std::int32_t>() + chunk.q_first,
         .mask = mask});
    run(IndexerKlInputs{.shape = shape,
                        .q = shifted(bound.attention.q.rows, chunk.q_first, shape.dtype),
                        .k = shifted(bound.attention.k.rows, chunk.k_first, shape.dtype),
                        .lse = shifted(bound.lse.const_data_ptr(), chunk.q_first * shape.heads,
                                       bound.real_size()),
                        .indexer = indexer,
                        .mask = mask,
                        .sequences = chunk.table.view()},
        chunk);
  }
}

Tensor2 indexer_kl(const KlArguments& in) {
  constexpr char op[] = "indexer_kl";
  const BoundKl bound = bind_kl(op, in);
  const Tensor loss = empty(op, "q", bound.layout.q_tokens, bound.real(), bound.layout.device);
  const Tensor index_lse = empty(op, "q", bound.layout.q_tokens, bound.real(), bound.layout.device);
  for_each_chunk(op, bound, [&](const IndexerKlInputs& inputs, const Chunk& chunk) {
    bound.backend->indexer_kl(
        {.in = inputs,
         .loss = shifted(loss.mutable_data_ptr(), chunk.q_first, bound.real_size()),
         .index_lse = shifted(index_lse.mutable_data_ptr(), chunk.q_first, bound.real_size())});
  });
  return {loss, index_lse};
}

Tensor4 indexer_kl_backward(const KlBackwardArguments& in) {
  constexpr char op[] = "indexer_kl_backward";
  const BoundKl bound = bind_kl(op, in.forward);
  const Tensor weight = bind_per_query(op, "dloss", in.dloss, bound.real(), bound.layout);
  const Tensor index_lse = bind_per_query(op, "index_lse", in.index_lse, bound.real(), bound.layout);

  const IndexerTensors& tensors = in.forward.indexer;
  const Indexer& indexer = bound.indexer.view;
  const DType dtype = bound.indexer.dtype;
  const at::ScalarType type = tensors.q.scalar_type();
  const Tensor dq = empty(op, "index_q", tensors.q.sizes().vec(), type, bound.layout.device);
  const Tensor dw = empty(op, "index_w", tensors.w.sizes().vec(), type, bound.layout.device);
  const Tensor dk = zeros(op, "index_k", tensors.k.sizes().vec(), bound.real(), bound.layout.device);
  const Tensor dbias =
      zeros(op, "index_bias", {tensors.bias ? indexer.heads : 0}, bound.real(), bound.layout.device);
  const Rows dq_rows = result_rows(dq, indexer.heads, indexer.head_size);
  const Rows dw_rows = result_rows(dw, indexer.heads, 1);
  for_each_chunk(op, bound, [&](const IndexerKlInputs& inputs, const Chunk& chunk) {
    bound.backend->indexer_kl_backward(
        {.in = inputs,
         .index_lse = shifted(index_lse.const_data_ptr(), chunk.q_first, bound.real_size()),
         .weight = shifted(weight.const_data_ptr(), chunk.q_first, bound.real_size()),
         .dq = shifted(dq_rows, chunk.q_first, dtype),
         .dw = shifted(dw_rows, chunk.q_first, dtype),
         .dk = shifted(dk.mutable_data_ptr(), chunk.k_first * indexer.head_size, bound.real_size()),
         .dbias = tensors.bias ? dbias.mutable_data_ptr() : nullptr});
  });
  return {dq, dk.to(type), dw, dbias.to(type)};
}

// ---- Fake kernels

Tensor2 indexer_kl_fake(const KlArguments& in) {
  constexpr char op[] = "indexer_kl";
  const std::int64_t dims = fake::token_dims(in.layout);
  fake::check_attention(op, in.q, in.k, std::nullopt, dims);
  fake::check_index(op, in.q, in.indexer, dims);
  fake::check_devices(op, {{"q", in.q},
                           {"lse", in.lse},
                           {"mask", in.mask},
                           {"threshold", in.threshold},
                           {"tie_cut", in.tie_cut}});
  const auto per_query = [&] {
    return fake::empty(fake::tokens_of(in.q, dims), in.q, fake::real_type(in.q));
  };
  return {per_query(), per_query()};
}

Tensor4 indexer_kl_backward_fake(const KlBackwardArguments& in) {
  constexpr char op[] = "indexer_kl_backward";
  const KlArguments& forward = in.forward;
  const IndexerTensors& indexer = forward.indexer;
  const std::int64_t dims = fake::token_dims(forward.layout);
  fake::check_attention(op, forward.q, forward.k, std::nullopt, dims);
  fake::check_index(op, forward.q, indexer, dims);
  fake::check_devices(op, {{"q", forward.q},
                           {"dloss", in.dloss},
                           {"lse", forward.lse},
                           {"mask", forward.mask},
                           {"threshold", forward.threshold},
                           {"tie_cut", forward.tie_cut},
                           {"index_lse", in.index_lse}});
  const c10::SymInt biases = indexer.bias ? indexer.q.sym_size(-2) : c10::SymInt(0);
  return {fake::empty_as(indexer.q), fake::empty_as(indexer.k), fake::empty_as(indexer.w),
          fake::empty({biases}, indexer.q, indexer.q.scalar_type())};
}

// ---- Gradient

class IndexerKl : public Function<IndexerKl> {
 public:
  struct Saved {
    Tensor q, k, lse, index_q, index_k, index_w;
    OptTensor index_bias, mask, threshold, tie_cut;
    Tensor index_lse;
    OptTensor cu_seqlens_q, cu_seqlens_k, q_position, query_tiles;
    auto slots() {
      return std::tie(q, k, lse, index_q, index_k, index_w, index_bias, mask, threshold, tie_cut, index_lse,
                      cu_seqlens_q, cu_seqlens_k, q_position, query_tiles);
    }
  };

  static variable_list forward(AutogradContext* ctx, const Tensor& index_q, const Tensor& index_k,
                               const Tensor& index_w, const OptTensor& index_bias, const KlArguments& in) {
    const at::AutoDispatchBelowADInplaceOrView below;
    auto [loss, index_lse] = call_indexer_kl(in);
    save(ctx, Saved{.q = in.q,
                    .k = in.k,
                    .lse = in.lse,
                    .index_q = index_q,
                    .index_k = index_k,
                    .index_w = index_w,
                    .index_bias = index_bias,
                    .mask = in.mask,
                    .threshold = in.threshold,
                    .tie_cut = in.tie_cut,
                    .index_lse = index_lse,
                    .cu_seqlens_q = in.layout.cu_seqlens_q,
                    .cu_seqlens_k = in.layout.cu_seqlens_k,
                    .q_position = in.layout.q_position,
                    .query_tiles = in.query_tiles});
    ctx->saved_data["scale"] = in.scale;
    ctx->saved_data["index_scale"] = in.indexer.scale;
    ctx->saved_data["form"] = std::string(in.indexer.form);
    ctx->mark_non_differentiable({index_lse});
    ctx->set_materialize_grads(false);
    return {loss, index_lse};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    variable_list result(5);
    if (!grads[0].defined()) return result;
    const auto saved = load<Saved>(ctx);
    auto [dq, dk, dw, dbias] = call_indexer_kl_backward(
        {.dloss = grads[0],
         .forward = {.q = saved.q,
                     .k = saved.k,
                     .lse = saved.lse,
                     .indexer = {.q = saved.index_q,
                                 .k = saved.index_k,
                                 .w = saved.index_w,
                                 .bias = saved.index_bias,
                                 .scale = ctx->saved_data["index_scale"].toDouble(),
                                 .form = ctx->saved_data["form"].toStringView()},
                     .mask = saved.mask,
                     .threshold = saved.threshold,
                     .tie_cut = saved.tie_cut,
                     .query_tiles = saved.query_tiles,
                     .scale = ctx->saved_data["scale"].toOptional<double>(),
                     .layout = {saved.cu_seqlens_q, saved.cu_seqlens_k, saved.q_position}},
         .index_lse = saved.index_lse});
    result[0] = wanted(ctx, 0, dq);
    result[1] = wanted(ctx, 1, dk);
    result[2] = wanted(ctx, 2, dw);
    if (saved.index_bias) result[3] = wanted(ctx, 3, dbias);
    return result;
  }
};

Tensor2 indexer_kl_autograd(const KlArguments& in) {
  const variable_list results =
      IndexerKl::apply(in.indexer.q, in.indexer.k, in.indexer.w, in.indexer.bias, in);
  return {results[0], results[1]};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(gsa, m) {
  implement(m, "indexer_kl", &indexer_kl_by<indexer_kl>);
  implement(m, "indexer_kl_backward", &indexer_kl_backward_by<indexer_kl_backward>);
}

TORCH_LIBRARY_IMPL(gsa, Meta, m) {
  m.impl("indexer_kl", &indexer_kl_by<indexer_kl_fake>);
  m.impl("indexer_kl_backward", &indexer_kl_backward_by<indexer_kl_backward_fake>);
}

TORCH_LIBRARY_IMPL(gsa, Autograd, m) {
  m.impl("indexer_kl", &indexer_kl_by<indexer_kl_autograd>);
  m.impl("indexer_kl_backward", not_differentiable());
}

}  // namespace gsa::binding

namespace gsa::ops {

KlLoss indexer_kl(const Tensor& q, const Tensor& k, const Tensor& lse, const IndexerInputs& indexer,
                  const OptTensor& mask, const OptTensor& threshold, const OptTensor& tie_cut,
                  std::optional<double> scale, const Layout& layout, const OptTensor& query_tiles) {
  auto [loss, index_lse] = binding::call_indexer_kl({.q = q,
                                                     .k = k,
                                                     .lse = lse,
                                                     .indexer = binding::tensors_of(indexer),
                                                     .mask = mask,
                                                     .threshold = threshold,
                                                     .tie_cut = tie_cut,
                                                     .query_tiles = query_tiles,
                                                     .scale = scale,
                                                     .layout = binding::tensors_of(layout)});
  return {loss, index_lse};
}

}  // namespace gsa::ops
