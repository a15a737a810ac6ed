// select and attend together, a chunk of queries at a time: the mask of one chunk is all that exists of the
// selection, and the backward pass rebuilds it from thresholds, unless the caller keeps the mask of all.
#include "kernels/attention/kept_mask.h"
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
  // select and attend in chunks of queries: the whole mask never exists, so memory is linear in the length.
  // Differentiable in q, k, v. The backward pass rebuilds the masks of chunks from the thresholds; where
  // gradients are wanted and the mask of a batch takes no more memory than q, out and their gradients (four
  // times q), it is kept instead.
  define(m, "sparse_attend(Tensor q, Tensor k, Tensor v, ", kIndexTensors, "=None, *, float? scale=None, ",
         kIndexScores, ", ", kBudget, ", ", kAccumulation, ", ", kLayout,
         ") -> (Tensor out, Tensor lse, Tensor k_t, Tensor variance, Tensor threshold, Tensor tie_cut)");
  // The same results, and the mask that select() would give, which the backward pass then reads: for who has
  // the memory, and more use for the mask.
  define(m, "sparse_attend_with_mask(Tensor q, Tensor k, Tensor v, ", kIndexTensors,
         "=None, *, float? scale=None, ", kIndexScores, ", ", kBudget, ", ", kAccumulation, ", ", kLayout,
         ", ", kWidth,
         ") -> (Tensor out, Tensor lse, Tensor k_t, Tensor variance, Tensor threshold, Tensor tie_cut, ",
         "Tensor mask)");
  // With a mask, the indexer's tensors and the thresholds are checked but not needed.
  define(m, "sparse_attend_backward(Tensor dout, Tensor q, Tensor k, Tensor v, ", kIndexTensors,
         ", Tensor out, Tensor lse, Tensor threshold, Tensor tie_cut, Tensor? mask=None, *, ",
         "float? scale=None, ", kIndexScores, ", int? max_selected=None, ", kAccumulation, ", ", kLayout,
         ") -> (Tensor dq, Tensor dk, Tensor dv)");
}

namespace {

// ---- Arguments

struct SparseAttendArguments {
  const Tensor& q;
  const Tensor& k;
  const Tensor& v;
  IndexerTensors indexer;
  std::optional<double> scale;
  BudgetTensors budget;
  std::string_view accumulation;
  LayoutTensors layout;
};

// The registered signatures; `run` is the implementation, the fake kernel or the gradient.
template <Tensor6 (*run)(const SparseAttendArguments& in)>
Tensor6 sparse_attend_by(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& index_q,
                         const Tensor& index_k, const Tensor& index_w, const OptTensor& index_bias,
                         std::optional<double> scale, double index_scale, std::string_view form,
                         std::string_view budget, std::int64_t k_base, std::int64_t k_min, std::int64_t k_max,
                         const OptTensor& mean_variance, std::string_view accumulation,
                         const OptTensor& cu_seqlens_q, const OptTensor& cu_seqlens_k,
                         const OptTensor& q_position) {
  return run(
      {.q = q,
       .k = k,
       .v = v,
       .indexer =
           {.q = index_q, .k = index_k, .w = index_w, .bias = index_bias, .scale = index_scale, .form = form},
       .scale = scale,
       .budget = {.mode = budget, .base = k_base, .min = k_min, .max = k_max, .mean_variance = mean_variance},
       .accumulation = accumulation,
       .layout = {cu_seqlens_q, cu_seqlens_k, q_position}});
}

using MaxKeys = std::optional<c10::SymInt>;  // the width of the mask that is returned

template <Tensor7 (*run)(const SparseAttendArguments& in, const MaxKeys& max_keys)>
Tensor7 sparse_attend_with_mask_by(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& index_q,
                                   const Tensor& index_k, const Tensor& index_w, const OptTensor& index_bias,
                                   std::optional<double> scale, double index_scale, std::string_view form,
                                   std::string_view budget, std::int64_t k_base, std::int64_t k_min,
                                   std::int64_t k_max, const OptTensor& mean_variance,
                                   std::string_view accumulation, const OptTensor& cu_seqlens_q,
                                   const OptTensor& cu_seqlens_k, const OptTensor& q_position,
                                   MaxKeys max_keys) {
  return run(
      {.q = q,
       .k = k,
       .v = v,
       .indexer =
           {.q = index_q, .k = index_k, .w = index_w, .bias = index_bias, .scale = index_scale, .form = form},
       .scale = scale,
       .budget = {.mode = budget, .base = k_base, .min = k_min, .max = k_max, .mean_variance = mean_variance},
       .accumulation = accumulation,
       .layout = {cu_seqlens_q, cu_seqlens_k, q_position}},
      max_keys);
}

// Calls one of the two; `width` is the second's max_keys.
template <typename Operator, typename... Width>
auto call(const Operator& op, const SparseAttendArguments& in, const Width&... width) {
  const auto& [q, k, v, indexer, scale, budget, accumulation, layout] = in;
  return op.call(q, k, v, indexer.q, indexer.k, indexer.w, indexer.bias, scale, indexer.scale, indexer.form,
                 budget.mode, budget.base, budget.min, budget.max, budget.mean_variance, accumulation,
                 layout.cu_seqlens_q, layout.cu_seqlens_k, layout.q_position, width...);
}

Tensor6 call_sparse_attend(const SparseAttendArguments& in) {
  static const auto op = find_operator<decltype(sparse_attend_by<nullptr>)>("gsa::sparse_attend");
  return call(op, in);
}

Tensor7 call_sparse_attend_with_mask(const SparseAttendArguments& in, const MaxKeys& max_keys) {
  static const auto op =
      find_operator<decltype(sparse_attend_with_mask_by<nullptr>)>("gsa::sparse_attend_with_mask");
  return call(op, in, max_keys);
}

// What the backward pass reads of the forward pass's arguments and results.
struct SparseAttendBackwardArguments {
  const Tensor& dout;
  const Tensor& q;
  const Tensor& k;
  const Tensor& v;
  IndexerTensors indexer;
  const Tensor& out;
  const Tensor& lse;
  const Tensor& threshold;
  const Tensor& tie_cut;
  const OptTensor& mask;
  std::optional<double> scale;
  std::optional<std::int64_t> max_selected;
  std::string_view accumulation;
  LayoutTensors layout;
};

template <Tensor3 (*run)(const SparseAttendBackwardArguments& in)>
Tensor3 sparse_attend_backward_by(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                                  const Tensor& index_q, const Tensor& index_k, const Tensor& index_w,
                                  const OptTensor& index_bias, const Tensor& out, const Tensor& lse,
                                  const Tensor& threshold, const Tensor& tie_cut, const OptTensor& mask,
                                  std::optional<double> scale, double index_scale, std::string_view form,
                                  std::optional<std::int64_t> max_selected, std::string_view accumulation,
                                  const OptTensor& cu_seqlens_q, const OptTensor& cu_seqlens_k,
                                  const OptTensor& q_position) {
  return run(
      {.dout = dout,
       .q = q,
       .k = k,
       .v = v,
       .indexer =
           {.q = index_q, .k = index_k, .w = index_w, .bias = index_bias, .scale = index_scale, .form = form},
       .out = out,
       .lse = lse,
       .threshold = threshold,
       .tie_cut = tie_cut,
       .mask = mask,
       .scale = scale,
       .max_selected = max_selected,
       .accumulation = accumulation,
       .layout = {cu_seqlens_q, cu_seqlens_k, q_position}});
}

Tensor3 call_sparse_attend_backward(const SparseAttendBackwardArguments& in) {
  static const auto op =
      find_operator<decltype(sparse_attend_backward_by<nullptr>)>("gsa::sparse_attend_backward");
  return op.call(in.dout, in.q, in.k, in.v, in.indexer.q, in.indexer.k, in.indexer.w, in.indexer.bias, in.out,
                 in.lse, in.threshold, in.tie_cut, in.mask, in.scale, in.indexer.scale, in.indexer.form,
                 in.max_selected, in.accumulation, in.layout.cu_seqlens_q, in.layout.cu_seqlens_k,
                 in.layout.q_position);
}

// ---- Implementation

// Of the mask of all queries, where it is to be kept.
struct KeptMask {
  MaxKeys max_keys;
};

// The results of sparse_attend, and that mask (else undefined).
Tensor7 select_and_attend(const SparseAttendArguments& in, const std::optional<KeptMask>& keep) {
  const char* const op = keep ? "sparse_attend_with_mask" : "sparse_attend";
  bind_accumulation(op, in.accumulation);  // of the backward pass
  const Tensor& q = in.q;
  const auto [layout, attention, indexer] = bind_layer(op, q, in.k, &in.v, in.scale, in.indexer, in.layout);
  const BoundBudget budget = bind_budget(op, in.budget, layout.device);

  const AttendShape& shape = attention.shape;
  const at::ScalarType real = real_type(shape.dtype);
  const std::int64_t real_size = static_cast<std::int64_t>(c10::elementSize(real));
  const Tensor out = empty(op, "q", q.sizes().vec(), q.scalar_type(), layout.device);
  const Tensor lse = empty(op, "q", joined(layout.q_tokens, {shape.heads}), real, layout.device);
  const Tensor k_t = empty(op, "q", layout.q_tokens, at::kInt, layout.device);
  const Tensor variance = empty(op, "q", layout.q_tokens, real, layout.device);
  const Tensor threshold = empty(op, "q", layout.q_tokens, real, layout.device);
  const Tensor tie_cut = empty(op, "q", layout.q_tokens, at::kInt, layout.device);

  const std::unique_ptr<Backend> backend = backend_of(q);
  const Rows out_rows = result_rows(out, shape.heads, shape.head_size);
  const std::vector<Chunk> chunks = plan_chunks(layout.table.view(), backend->chunk_limits());
  Tensor kept;
  if (keep) {
    const std::int64_t words = mask_words(row_width(op, layout, keep->max_keys));
    kept = empty(op, "q", joined(layout.q_tokens, {words}), at::kInt, layout.device);
  }
  const ChunkMask masks = keep ? ChunkMask(kept) : ChunkMask(op, chunks, layout.device);
  for (const Chunk& chunk : chunks) {
    const Mask mask = masks.of(chunk);
    backend->select({.dtype = shape.dtype,
                     .indexer = part_of(indexer.view, chunk, shape.dtype),
                     .budget = budget.view,
                     .sequences = chunk.table.view(),
                     .mask = mask,
                     .k_t = k_t.mutable_data_ptr<std::int32_t>() + chunk.q_first,
                     .variance = shifted(variance.mutable_data_ptr(), chunk.q_first, real_size),
                     .threshold = shifted(threshold.mutable_data_ptr(), chunk.q_first, real_size),
                     .tie_cut = tie_cut.mutable_data_ptr<std::int32_t>() + chunk.q_first});
    ConstMask selected = mask;
    selected.max_selected = budget.max_selected();
    backend->attend({.shape = shape,
                     .q = shifted(attention.q.rows, chunk.q_first, shape.dtype),
                     .k = shifted(attention.k.rows, chunk.k_first, shape.dtype),
                     .v = shifted(attention.v.rows, chunk.k_first, shape.dtype),
                     .mask = selected,
                     .sequences = chunk.table.view(),
                     .out = shifted(out_rows, chunk.q_first, shape.dtype),
                     .lse = shifted(lse.mutable_data_ptr(), chunk.q_first * shape.heads, real_size)});
  }
  return {out, lse, k_t, variance, threshold, tie_cut, kept};
}

Tensor6 sparse_attend(const SparseAttendArguments& in) {
  auto [out, lse, k_t, variance, threshold, tie_cut, none] = select_and_attend(in, std::nullopt);
  return {out, lse, k_t, variance, threshold, tie_cut};
}

Tensor7 sparse_attend_with_mask(const SparseAttendArguments& in, const MaxKeys& max_keys) {
  return select_and_attend(in, KeptMask{max_keys});
}

Tensor3 sparse_attend_backward(const SparseAttendBackwardArguments& in) {
  constexpr char op[] = "sparse_attend_backward";
  const cuda::Accumulation order = bind_accumulation(op, in.accumulation);
  if (in.max_selected) check_range(op, "max_selected", "a number of keys", *in.max_selected, 1, kMaxTokens);
  const Tensor &q = in.q, &k = in.k, &v = in.v;
  const auto [layout, attention, indexer] = bind_layer(op, q, k, &v, in.scale, in.indexer, in.layout);
  const AttendShape& shape = attention.shape;
  const at::ScalarType real = real_type(shape.dtype);
  check_like(op, "dout", in.dout, q.scalar_type(), q.sizes().vec(), layout.device);
  check_like(op, "out", in.out, q.scalar_type(), q.sizes().vec(), layout.device);
  const BoundRows dout = head_rows(in.dout), out = head_rows(in.out);
  const Tensor lse = bind_per_query(op, "lse", in.lse, real, layout, {shape.heads});
  const Tensor threshold = bind_per_query(op, "threshold", in.threshold, real, layout);
  const Tensor tie_cut = bind_per_query(op, "tie_cut", in.tie_cut, at::kInt, layout);
  const BoundMask mask = bind_mask(op, in.mask, layout);

  const std::int64_t real_size = static_cast<std::int64_t>(c10::elementSize(real));
  const std::unique_ptr<Backend> backend = backend_of(q);
  const Tensor dq = empty(op, "q", q.sizes().vec(), q.scalar_type(), layout.device);
  const Tensor dk = zeros(op, "k", k.sizes().vec(), real, layout.device);
  const Tensor dv = zeros(op, "v", k.sizes().vec(), real, layout.device);

  const Rows dq_rows = result_rows(dq, shape.heads, shape.head_size);
  const std::int64_t key_elements = shape.kv_heads * shape.head_size;
  const std::vector<Chunk> chunks = plan_chunks(layout.table.view(), backend->chunk_limits());
  const ChunkMask masks = in.mask ? ChunkMask(mask.tensor) : ChunkMask(op, chunks, layout.device);
  for (const Chunk& chunk : chunks) {
    const Mask chunk_mask = masks.of(chunk);
    if (!in.mask) {
      backend->select_mask({.dtype = shape.dtype,
                            .indexer = part_of(indexer.view, chunk, shape.dtype),
                            .sequences = chunk.table.view(),
                            .threshold = shifted(threshold.const_data_ptr(), chunk.q_first, real_size),
                            .tie_cut = tie_cut.const_data_ptr<std::int32_t>() + chunk.q_first,
                            .mask = chunk_mask});
    }
    ConstMask selected = chunk_mask;
    selected.max_selected = in.max_selected.value_or(0);
    backend->attend_backward({.shape = shape,
                              .q = shifted(attention.q.rows, chunk.q_first, shape.dtype),
                              .k = shifted(attention.k.rows, chunk.k_first, shape.dtype),
                              .v = shifted(attention.v.rows, chunk.k_first, shape.dtype),
                              .mask = selected,
                              .sequences = chunk.table.view(),
                              .out = shifted(out.rows, chunk.q_first, shape.dtype),
                              .lse = shifted(lse.const_data_ptr(), chunk.q_first * shape.heads, real_size),
                              .dout = shifted(dout.rows, chunk.q_first, shape.dtype),
                              .dq = shifted(dq_rows, chunk.q_first, shape.dtype),
                              .dk = shifted(dk.mutable_data_ptr(), chunk.k_first * key_elements, real_size),
                              .dv = shifted(dv.mutable_data_ptr(), chunk.k_first * key_elements, real_size)},
                             order);
  }
  return {dq, dk.to(k.scalar_type()), dv.to(v.scalar_type())};
}

// ---- Fake kernels

Tensor6 sparse_attend_fake(const SparseAttendArguments& in) {
  constexpr char op[] = "sparse_attend";
  const Tensor& q = in.q;
  const std::int64_t dims = fake::token_dims(in.layout);
  fake::check_attention(op, q, in.k, in.v, dims);
  fake::check_index(op, q, in.indexer, dims);
  const auto per_query = [&](at::ScalarType type) { return fake::empty(fake::tokens_of(q, dims), q, type); };
  const at::ScalarType real = fake::real_type(q);
  return {fake::empty_as(q),   fake::empty(fake::joined(fake::tokens_of(q, dims), q.sym_size(-2)), q, real),
          per_query(at::kInt), per_query(real),
          per_query(real),     per_query(at::kInt)};
}

Tensor7 sparse_attend_with_mask_fake(const SparseAttendArguments& in, const MaxKeys& max_keys) {
  const Tensor6 results = sparse_attend_fake(in);
  const c10::SymInt keys = fake::row_width("sparse_attend_with_mask", in.k, in.layout, max_keys);
  const fake::SymShape tokens = fake::tokens_of(in.q, fake::token_dims(in.layout));
  const Tensor mask = fake::empty(fake::joined(tokens, fake::mask_words(keys)), in.q, at::kInt);
  return std::tuple_cat(results, std::make_tuple(mask));
}

Tensor3 sparse_attend_backward_fake(const SparseAttendBackwardArguments& in) {
  constexpr char op[] = "sparse_attend_backward";
  const std::int64_t dims = fake::token_dims(in.layout);
  fake::check_attention(op, in.q, in.k, in.v, dims);
  fake::check_index(op, in.q, in.indexer, dims);
  fake::check_devices(op, {{"q", in.q},
                           {"dout", in.dout},
                           {"out", in.out},
                           {"lse", in.lse},
                           {"threshold", in.threshold},
                           {"tie_cut", in.tie_cut},
                           {"mask", in.mask}});
  return {fake::empty_as(in.q), fake::empty_as(in.k), fake::empty_as(in.v)};
}

// ---- Gradient

class SparseAttend : public Function<SparseAttend> {
 public:
  struct Saved {
    Tensor q, k, v, index_q, index_k, index_w;
    OptTensor index_bias;
    Tensor out, lse, threshold, tie_cut;
    OptTensor mask, cu_seqlens_q, cu_seqlens_k, q_position;
    auto slots() {
      return std::tie(q, k, v, index_q, index_k, index_w, index_bias, out, lse, threshold, tie_cut, mask,
                      cu_seqlens_q, cu_seqlens_k, q_position);
    }
  };

  static variable_list forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                               const SparseAttendArguments& in, const std::optional<KeptMask>& keep) {
    const at::AutoDispatchBelowADInplaceOrView below;
    Tensor out, lse, k_t, variance, threshold, tie_cut, mask;
    if (keep) {
      std::tie(out, lse, k_t, variance, threshold, tie_cut, mask) =
          call_sparse_attend_with_mask(in, keep->max_keys);
    } else {
      std::tie(out, lse, k_t, variance, threshold, tie_cut) = call_sparse_attend(in);
    }
    save(ctx, Saved{.q = q,
                    .k = k,
                    .v = v,
                    .index_q = in.indexer.q,
                    .index_k = in.indexer.k,
                    .index_w = in.indexer.w,
                    .index_bias = in.indexer.bias,
                    .out = out,
                    .lse = lse,
                    .threshold = threshold,
                    .tie_cut = tie_cut,
                    .mask = optional_of(mask),
                    .cu_seqlens_q = in.layout.cu_seqlens_q,
                    .cu_seqlens_k = in.layout.cu_seqlens_k,
                    .q_position = in.layout.q_position});
    ctx->saved_data["scale"] = in.scale;
    ctx->saved_data["index_scale"] = in.indexer.scale;
    ctx->saved_data["form"] = std::string(in.indexer.form);
    ctx->saved_data["k_max"] = in.budget.max;
    ctx->saved_data["accumulation"] = std::string(in.accumulation);
    variable_list results = {out, lse, k_t, variance, threshold, tie_cut};
    if (keep) results.push_back(mask);
    ctx->mark_non_differentiable({results.begin() + 1, results.end()});
    ctx->set_materialize_grads(false);
    return results;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    variable_list result(5);
    if (!grads[0].defined()) return result;
    const auto saved = load<Saved>(ctx);
    auto [dq, dk, dv] =
        call_sparse_attend_backward({.dout = grads[0],
                                     .q = saved.q,
                                     .k = saved.k,
                                     .v = saved.v,
                                     .indexer = {.q = saved.index_q,
                                                 .k = saved.index_k,
                                                 .w = saved.index_w,
                                                 .bias = saved.index_bias,
                                                 .scale = ctx->saved_data["index_scale"].toDouble(),
                                                 .form = ctx->saved_data["form"].toStringView()},
                                     .out = saved.out,
                                     .lse = saved.lse,
                                     .threshold = saved.threshold,
                                     .tie_cut = saved.tie_cut,
                                     .mask = saved.mask,
                                     .scale = ctx->saved_data["scale"].toOptional<double>(),
                                     .max_selected = ctx->saved_data["k_max"].toInt(),
                                     .accumulation = ctx->saved_data["accumulation"].toStringView(),
                                     .layout = {saved.cu_seqlens_q, saved.cu_seqlens_k, saved.q_position}});
    result[0] = wanted(ctx, 0, dq);
    result[1] = wanted(ctx, 1, dk);
    result[2] = wanted(ctx, 2, dv);
    return result;
  }
};

// Whether the backward pass wants the mask, and it is worth its memory. (The mask of packed sequences is as
// wide as the longest, which shapes do not tell.)
bool keeps_mask(const SparseAttendArguments& in) {
  const Tensor &q = in.q, &k = in.k;
  if (!at::GradMode::is_enabled() || !(q.requires_grad() || k.requires_grad() || in.v.requires_grad())) {
    return false;
  }
  if (in.layout.cu_seqlens_q || q.dim() != 4 || k.dim() != 4) return false;
  const c10::SymInt query_bytes = q.sym_size(2) * q.sym_size(3) * static_cast<std::int64_t>(q.element_size());
  return mask_is_affordable(fake::mask_words(k.sym_size(1)), query_bytes);
}

Tensor6 sparse_attend_autograd(const SparseAttendArguments& in) {
  const auto keep = keeps_mask(in) ? std::optional(KeptMask{}) : std::nullopt;
  const variable_list results = SparseAttend::apply(in.q, in.k, in.v, in, keep);
  return {results[0], results[1], results[2], results[3], results[4], results[5]};
}

Tensor7 sparse_attend_with_mask_autograd(const SparseAttendArguments& in, const MaxKeys& max_keys) {
  const auto keep = std::optional(KeptMask{max_keys});
  const variable_list results = SparseAttend::apply(in.q, in.k, in.v, in, keep);
  return {results[0], results[1], results[2], results[3], results[4], results[5], results[6]};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(gsa, m) {
  implement(m, "sparse_attend", &sparse_attend_by<sparse_attend>);
  implement(m, "sparse_attend_with_mask", &sparse_attend_with_mask_by<sparse_attend_with_mask>);
  implement(m, "sparse_attend_backward", &sparse_attend_backward_by<sparse_attend_backward>);
}

TORCH_LIBRARY_IMPL(gsa, Meta, m) {
  m.impl("sparse_attend", &sparse_attend_by<sparse_attend_fake>);
  m.impl("sparse_attend_with_mask", &sparse_attend_with_mask_by<sparse_attend_with_mask_fake>);
  m.impl("sparse_attend_backward", &sparse_attend_backward_by<sparse_attend_backward_fake>);
}

TORCH_LIBRARY_IMPL(gsa, Autograd, m) {
  m.impl("sparse_attend", &sparse_attend_by<sparse_attend_autograd>);
  m.impl("sparse_attend_with_mask", &sparse_attend_with_mask_by<sparse_attend_with_mask_autograd>);
  m.impl("sparse_attend_backward", not_differentiable());
}

}  // namespace gsa::binding

namespace gsa::ops {

using binding::tensors_of;

SparseAttention sparse_attend(const Tensor& q, const Tensor& k, const Tensor& v, const IndexerInputs& indexer,
                              const BudgetOptions& budget, std::optional<double> scale, const Layout& layout,
                              const std::string& accumulation) {
  auto [out, lse, k_t, variance, threshold, tie_cut] =
      binding::call_sparse_attend({.q = q,
                                   .k = k,
                                   .v = v,
                                   .indexer = tensors_of(indexer),
                                   .scale = scale,
                                   .budget = tensors_of(budget),
                                   .accumulation = accumulation,
                                   .layout = tensors_of(layout)});
  return {{out, lse}, {Tensor(), k_t, variance, threshold, tie_cut}};
}

SparseAttention sparse_attend_with_mask(const Tensor& q, const Tensor& k, const Tensor& v,
                                        const IndexerInputs& indexer, const BudgetOptions& budget,
                                        std::optional<double> scale, const Layout& layout,
                                        const std::string& accumulation) {
  auto [out, lse, k_t, variance, threshold, tie_cut, mask] =
      binding::call_sparse_attend_with_mask({.q = q,
                                             .k = k,
                                             .v = v,
                                             .indexer = tensors_of(indexer),
                                             .scale = scale,
                                             .budget = tensors_of(budget),
                                             .accumulation = accumulation,
                                             .layout = tensors_of(layout)},
                                            std::nullopt);
  return {{out, lse}, {mask, k_t, variance, threshold, tie_cut}};
}

}  // namespace gsa::ops
