// decode: the newest queries of each sequence against a paged cache.
#include "gsa/error.h"
#include "kernels/common/checks.h"
#include "kernels/decode/decode_checks.h"
#include "torch/arguments.h"
#include "torch/backend.h"
#include "torch/fake.h"
#include "torch/operators.h"
#include "torch/ops.h"
#include "torch/schema.h"

namespace gsa::binding {

TORCH_LIBRARY_FRAGMENT(gsa, m) {
  using namespace schema;
  // The newest L queries (any number on the CPU, 1 .. 16 on a CUDA device) of each sequence against a paged
  // cache, all in one call: score, select, attend, gate. Position s of sequence n lies in row s % page_size
  // of page block_table[n, s / page_size]; query i of sequence n stands at position lengths[n] - L + i. All
  // tensors lie on one device: a captured CUDA graph replays with other lengths and pages. Without index_q
  // every visible key is attended to; without gate nothing is gated. A query at a negative position (an
  // unused sequence of length 0) gets NaN and k_t = 0. No gradient.
  //
  // Where layers share a selection, decode_with_selection() is called for the one with an indexer: the results of
  // decode(), and the positions that its queries select. decode() takes these positions (and their k_t) for the
  // others instead of index_q, and attends to exactly the keys that lie there. They are checked on the CPU; on a
  // CUDA device, where looking would mean waiting, they are trusted as block_table is.
  //   q              [B, L, n_h, d]
  //   k, v           [pages, page_size, n_kv, d]; page_size is a power of two, 8 .. 1024
  //   block_table    int32 [B, blocks]
  //   lengths        int32 [B]: keys in the cache, those of the L queries included
  //   index_q        [B, L, H_I, d_I]
  //   index_k        [pages, page_size, d_I]; int8 where index_k_scale is given
  //   index_w        [B, L, H_I]; index_bias [H_I] or None
  //   gate           z of gate(): as q, or [B, L, n_h]
  //   max_length     no sequence is longer: sizes scratch memory and launches
  //   index_k_scale  float32 [pages, page_size]: the indexer's key is index_k * scale, in float32
  //   selected       int32 [B, L, W]: positions, ascending; -1 behind the last. As a result W is
  //                  min(max_length, k_max), as an argument anything
  //   selected_k     int32 [B, L]: how many positions count; k_t of who selected them. 0 makes NaN
  define(m, "decode(Tensor q, Tensor k, Tensor v, Tensor block_table, Tensor lengths, Tensor? index_q=None, ",
         "Tensor? index_k=None, Tensor? index_w=None, Tensor? index_bias=None, Tensor? gate=None, *, ",
         "int max_length, float? scale=None, ", kIndexScores, ", ", kBudget,
         ", Tensor? index_k_scale=None, Tensor? selected=None, Tensor? selected_k=None)",
         " -> (Tensor out, Tensor lse, Tensor k_t)");
  define(m,
         "decode_with_selection(Tensor q, Tensor k, Tensor v, Tensor block_table, Tensor lengths, "
         "Tensor index_q, Tensor index_k, Tensor index_w, Tensor? index_bias=None, Tensor? gate=None, *, "
         "int max_length, float? scale=None, ",
         kIndexScores, ", ", kBudget,
         ", Tensor? index_k_scale=None) -> (Tensor out, Tensor lse, Tensor k_t, Tensor selected)");
}

namespace {

// ---- Arguments

struct DecodeArguments {
  const Tensor& q;  // [B, L, n_h, d]
  const Tensor& k;  // [pages, page_size, n_kv, d]
  const Tensor& v;
  const Tensor& block_table;  // int32 [B, blocks]
  const Tensor& lengths;      // int32 [B]
  const OptTensor& index_q;   // [B, L, H_I, d_I]
  const OptTensor& index_k;   // [pages, page_size, d_I], int8 where index_k_scale is given
  const OptTensor& index_w;   // [B, L, H_I]
  const OptTensor& index_bias;
  const OptTensor& gate;  // as q, or [B, L, n_h]
  std::int64_t max_length;
  std::optional<double> scale;
  double index_scale;
  std::string_view form;
  BudgetTensors budget;
  const OptTensor& index_k_scale;  // float32 [pages, page_size]
  const OptTensor& selected;       // int32 [B, L, W]
  const OptTensor& selected_k;     // int32 [B, L]
};

// The registered signatures; `run` is the implementation or the fake kernel.
template <Tensor3 (*run)(const DecodeArguments& in)>
Tensor3 decode_by(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& block_table,
                  const Tensor& lengths, const OptTensor& index_q, const OptTensor& index_k,
                  const OptTensor& index_w, const OptTensor& index_bias, const OptTensor& gate,
                  std::int64_t max_length, std::optional<double> scale, double index_scale,
                  std::string_view form, std::string_view budget, std::int64_t k_base, std::int64_t k_min,
                  std::int64_t k_max, const OptTensor& mean_variance, const OptTensor& index_k_scale,
                  const OptTensor& selected, const OptTensor& selected_k) {
  return run(
      {.q = q,
       .k = k,
       .v = v,
       .block_table = block_table,
       .lengths = lengths,
       .index_q = index_q,
       .index_k = index_k,
       .index_w = index_w,
       .index_bias = index_bias,
       .gate = gate,
       .max_length = max_length,
       .scale = scale,
       .index_scale = index_scale,
       .form = form,
       .budget = {.mode = budget, .base = k_base, .min = k_min, .max = k_max, .mean_variance = mean_variance},
       .index_k_scale = index_k_scale,
       .selected = selected,
       .selected_k = selected_k});
}

template <Tensor4 (*run)(const DecodeArguments& in)>
Tensor4 decode_with_selection_by(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& block_table,
                                 const Tensor& lengths, const Tensor& index_q, const Tensor& index_k,
                                 const Tensor& index_w, const OptTensor& index_bias, const OptTensor& gate,
                                 std::int64_t max_length, std::optional<double> scale, double index_scale,
                                 std::string_view form, std::string_view budget, std::int64_t k_base,
                                 std::int64_t k_min, std::int64_t k_max, const OptTensor& mean_variance,
                                 const OptTensor& index_k_scale) {
  const OptTensor given_q = index_q, given_k = index_k, given_w = index_w, none;
  return run(
      {.q = q,
       .k = k,
       .v = v,
       .block_table = block_table,
       .lengths = lengths,
       .index_q = given_q,
       .index_k = given_k,
       .index_w = given_w,
       .index_bias = index_bias,
       .gate = gate,
       .max_length = max_length,
       .scale = scale,
       .index_scale = index_scale,
       .form = form,
       .budget = {.mode = budget, .base = k_base, .min = k_min, .max = k_max, .mean_variance = mean_variance},
       .index_k_scale = index_k_scale,
       .selected = none,
       .selected_k = none});
}

Tensor3 call_decode(const DecodeArguments& in) {
  static const auto op = find_operator<decltype(decode_by<nullptr>)>("gsa::decode");
  return op.call(in.q, in.k, in.v, in.block_table, in.lengths, in.index_q, in.index_k, in.index_w,
                 in.index_bias, in.gate, in.max_length, in.scale, in.index_scale, in.form, in.budget.mode,
                 in.budget.base, in.budget.min, in.budget.max, in.budget.mean_variance, in.index_k_scale,
                 in.selected, in.selected_k);
}

// index_q, index_k and index_w are given.
Tensor4 call_decode_with_selection(const DecodeArguments& in) {
  static const auto op =
      find_operator<decltype(decode_with_selection_by<nullptr>)>("gsa::decode_with_selection");
  return op.call(in.q, in.k, in.v, in.block_table, in.lengths, *in.index_q, *in.index_k, *in.index_w,
                 in.index_bias, in.gate, in.max_length, in.scale, in.index_scale, in.form, in.budget.mode,
                 in.budget.base, in.budget.min, in.budget.max, in.budget.mean_variance, in.index_k_scale);
}

// Keeps alive what args points into. Results are allocated.
struct BoundDecode {
  DecodeArgs args;
  BoundBudget budget;
  BoundRows q, gate, index_q, index_w;
  Tensor k, v, index_k, index_k_scale, index_bias, block_table, lengths, selected, selected_k;
  Tensor out, lse, k_t, selected_out;
};

// Pages with a contiguous last dimension; other strides are free, so that a cache may interleave what it
// holds.
Tensor bind_pages(const Tensor& pages) { return pages.stride(-1) == 1 ? pages : pages.contiguous(); }

ConstPages head_pages(const Tensor& pages) {
  return {pages.const_data_ptr(), pages.stride(0), pages.stride(1), pages.stride(2)};
}
ConstPages vector_pages(const Tensor& pages) {
  return {pages.const_data_ptr(), pages.stride(0), pages.stride(1), 0};
}

void bind_attention_of(const char* op, const DecodeArguments& in, BoundDecode& bound) {
  const Tensor &q = in.q, &k = in.k;
  check_rank(op, "q", q, 4, "[B, L, heads, d]");
  check_rank(op, "k", k, 4, "[pages, page size, key/value heads, d]");
  const std::int64_t batch = q.size(0), queries = q.size(1), heads = q.size(2), size = q.size(3);
  check_range(op, "q", "a number of sequences", batch, 0, kMaxDecodeSequences);
  check_range(op, "q", "a number of queries a sequence", queries, 1,
              q.is_cuda() ? kMaxCudaQueries : kMaxDecodeLength);
  check::page_size(op, "k", k.size(1));
  const TokenLayout layout{.q_tokens = {batch, queries},
                           .k_tokens = {k.size(0), k.size(1)},
                           .longest_keys = 0,
                           .table = {},
                           .device = q.device()};
  bound.args.shape = attention_shape(op, q, k, &in.v, in.scale, layout);
  bound.q = head_rows(q);
  bound.k = bind_pages(k);
  bound.v = bind_pages(in.v);
  bound.args.sequences = batch;
  bound.args.queries = queries;
  bound.args.q = bound.q.rows;
  bound.args.k = head_pages(bound.k);
  bound.args.v = head_pages(bound.v);
  if (!in.gate) return;
  const bool head_wise = in.gate->dim() == 3;
  const Shape shape = head_wise ? Shape{batch, queries, heads} : Shape{batch, queries, heads, size};
  check_like(op, "gate", *in.gate, q.scalar_type(), shape, q.device());
  bound.gate = head_wise ? scalar_rows(*in.gate) : head_rows(*in.gate);
  bound.args.gate = bound.gate.rows;
  bound.args.head_wise = head_wise;
}

void bind_indexer_of(const char* op, const DecodeArguments& in, BoundDecode& bound) {
  const bool wanted = in.index_q.has_value();
  const auto check_given = [&](const char* name, bool given) {
    if (given != wanted) {
      bad_argument(op, name, wanted ? "a tensor, as index_q is given" : "None, as index_q is",
                   given ? "a tensor" : "None");
    }
  };
  check_given("index_k", in.index_k.has_value());
  check_given("index_w", in.index_w.has_value());
  if (!wanted) {
    if (in.index_bias) check_given("index_bias", true);
    if (in.index_k_scale) check_given("index_k_scale", true);
    return;
  }
  const Tensor &q = *in.index_q, &k = *in.index_k;
  check_rank(op, "index_q", q, 4, "[B, L, indexer heads, d]");
  check_rank(op, "index_k", k, 3, "[pages, page size, d]");
  check_device(op, "index_q", q, in.q.device());
  check_type(op, "index_q", q, in.q.scalar_type());
  const TokenLayout layout{.q_tokens = {in.q.size(0), in.q.size(1)},
                           .k_tokens = {in.k.size(0), in.k.size(1)},
                           .longest_keys = 0,
                           .table = {},
                           .device = in.q.device()};
  const bool eight_bit = in.index_k_scale.has_value();
  const BoundIndexer indexer = bind_indexer_but_keys(
      op, kIndexNames,
      {.q = q, .k = k, .w = *in.index_w, .bias = in.index_bias, .scale = in.index_scale, .form = in.form},
      layout, eight_bit ? at::kChar : q.scalar_type());
  bound.index_q = indexer.q;
  bound.index_w = indexer.w;
  bound.index_bias = indexer.bias;
  bound.index_k = bind_pages(k);
  bound.args.index_heads = indexer.view.heads;
  bound.args.index_head_size = indexer.view.head_size;
  bound.args.index_q = indexer.view.q;
  bound.args.index_w = indexer.view.w;
  bound.args.index_k = vector_pages(bound.index_k);
  if (eight_bit) {
    const Tensor& scale = *in.index_k_scale;
    check_like(op, "index_k_scale", scale, at::kFloat, {k.size(0), k.size(1)}, q.device());
    bound.index_k_scale = bind_pages(scale);
    bound.args.index_k_scale = bound.index_k_scale.const_data_ptr<float>();
    bound.args.index_k_scale_stride = bound.index_k_scale.stride(0);
  }
  bound.args.index_bias = indexer.view.bias;
  bound.args.index_scale = indexer.view.scale;
  bound.args.form = indexer.view.form;
}

void bind_pages_of(const char* op, const DecodeArguments& in, BoundDecode& bound) {
  const std::int64_t batch = in.q.size(0), page = in.k.size(1);
  const at::Device device = in.q.device();
  check_rank(op, "block_table", in.block_table, 2, "[B, blocks]");
  check_like(op, "block_table", in.block_table, at::kInt, {batch, in.block_table.size(1)}, device);
  check_like(op, "lengths", in.lengths, at::kInt, {batch}, device);
  check_range(op, "max_length", "a length that block_table has pages for,", in.max_length, 1,
              std::min(kMaxDecodeLength, in.block_table.size(1) * page));
  bound.block_table = in.block_table.contiguous();
  bound.lengths = in.lengths.contiguous();
  bound.args.pages = {.page_size = page,
                      .block_table = bound.block_table.const_data_ptr<std::int32_t>(),
                      .blocks = bound.block_table.size(1),
                      .length = bound.lengths.const_data_ptr<std::int32_t>()};
  bound.args.max_length = in.max_length;
}

// A selection that was made elsewhere.
void bind_selection_of(const char* op, const DecodeArguments& in, BoundDecode& bound) {
  if (in.selected.has_value() != in.selected_k.has_value()) {
    bad_argument(op, "selected_k", in.selected ? "a tensor, as selected is given" : "None, as selected is",
                 in.selected ? "None" : "a tensor");
  }
  if (!in.selected) return;
  if (in.index_q) bad_argument(op, "selected", "None, as index_q is given", "a tensor");
  const Shape tokens = {in.q.size(0), in.q.size(1)};
  const at::Device device = in.q.device();
  check_rank(op, "selected", *in.selected, 3, "[B, L, positions]");
  const std::int64_t width = in.selected->size(2);
  check_range(op, "selected", "a number of positions", width, 1, kMaxDecodeLength);
  check_like(op, "selected", *in.selected, at::kInt, joined(tokens, {width}), device);
  check_like(op, "selected_k", *in.selected_k, at::kInt, tokens, device);
  bound.selected = in.selected->contiguous();
  bound.selected_k = in.selected_k->contiguous();
  bound.args.selected_width = width;
  bound.args.selected = bound.selected.const_data_ptr<std::int32_t>();
  bound.args.selected_k = bound.selected_k.const_data_ptr<std::int32_t>();
}

BoundDecode bind_decode(const char* op, const DecodeArguments& in, bool wants_selection) {
  BoundDecode bound;
  bind_attention_of(op, in, bound);
  bind_indexer_of(op, in, bound);
  bind_pages_of(op, in, bound);
  bind_selection_of(op, in, bound);
  bound.budget = bind_budget(op, in.budget, in.q.device());
  bound.args.budget = bound.budget.view;

  const Tensor& q = in.q;
  const AttendShape& shape = bound.args.shape;
  const Shape tokens = {q.size(0), q.size(1)};
  bound.out = empty(op, "q", q.sizes().vec(), q.scalar_type(), q.device());
  bound.lse = empty(op, "q", joined(tokens, {shape.heads}), real_type(shape.dtype), q.device());
  bound.k_t = empty(op, "q", tokens, at::kInt, q.device());
  bound.args.out = result_rows(bound.out, shape.heads, shape.head_size);
  bound.args.lse = bound.lse.mutable_data_ptr();
  bound.args.k_t = bound.k_t.mutable_data_ptr<std::int32_t>();
  if (!wants_selection) return bound;
  const std::int64_t width = std::min(in.max_length, in.budget.max);
  bound.selected_out = empty(op, "q", joined(tokens, {width}), at::kInt, q.device());
  bound.args.selected_width = width;
  bound.args.selected_out = bound.selected_out.mutable_data_ptr<std::int32_t>();
  return bound;
}

// ---- Implementation

// Every length within bounds, and every block of a sequence a page that there is. On the CPU alone: a CUDA
// device would have to wait.
void check_pages(const char* op, const DecodeArgs& args, std::int64_t pages) {
  for (std::int64_t n = 0; n < args.sequences; ++n) {
    const std::int64_t length = args.pages.length[n];
    check_range(op, "lengths", "a length", length, 0, args.max_length);
    const std::int32_t* blocks = args.pages.block_table + n * args.pages.blocks;
    for (std::int64_t i = 0; i * args.pages.page_size < length; ++i) {
      if (blocks[i] < 0 || blocks[i] >= pages) {
        bad_argument(op, "block_table",
                     concat("pages in 0 .. ", pages - 1, " up to the length of sequence ", n),
                     concat(blocks[i]));
      }
    }
  }
}

BoundDecode run_decode(const char* op, const DecodeArguments& in, bool wants_selection) {
  const Tensor &q = in.q, &k = in.k;
  if (k.is_cuda() && !q.is_cuda()) check_device(op, "q", q, k.device());
  const std::unique_ptr<Backend> backend = backend_of(q);
  BoundDecode bound = bind_decode(op, in, wants_selection);
  if (q.size(0) > 0) {
    if (!q.is_cuda()) check_pages(op, bound.args, k.size(0));
    backend->decode(bound.args);
  }
  return bound;
}

Tensor3 decode(const DecodeArguments& in) {
  const BoundDecode bound = run_decode("decode", in, false);
  return {bound.out, bound.lse, bound.k_t};
}

Tensor4 decode_with_selection(const DecodeArguments& in) {
  const BoundDecode bound = run_decode("decode_with_selection", in, true);
  return {bound.out, bound.lse, bound.k_t, bound.selected_out};
}

// ---- Fake kernel

Tensor3 fake_results(const char* op, const DecodeArguments& in) {
  const Tensor& q = in.q;
  fake::check_rank(op, "q", q, 4);
  fake::check_rank(op, "k", in.k, 4);
  fake::check_rank(op, "v", in.v, 4);
  fake::check_devices(op, {{"q", q},
                           {"k", in.k},
                           {"v", in.v},
                           {"block_table", in.block_table},
                           {"lengths", in.lengths},
                           {"index_q", in.index_q},
                           {"index_k", in.index_k},
                           {"index_w", in.index_w},
                           {"index_bias", in.index_bias},
                           {"gate", in.gate},
                           {"index_k_scale", in.index_k_scale},
                           {"selected", in.selected},
                           {"selected_k", in.selected_k}});
  const fake::SymShape tokens = fake::tokens_of(q, 2);
  return {fake::empty_as(q), fake::empty(fake::joined(tokens, q.sym_size(2)), q, fake::real_type(q)),
          fake::empty(tokens, q, at::kInt)};
}

Tensor3 decode_fake(const DecodeArguments& in) { return fake_results("decode", in); }

Tensor4 decode_with_selection_fake(const DecodeArguments& in) {
  auto [out, lse, k_t] = fake_results("decode_with_selection", in);
  const c10::SymInt width = std::min(in.max_length, in.budget.max);
  return {out, lse, k_t, fake::empty(fake::joined(fake::tokens_of(in.q, 2), width), in.q, at::kInt)};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(gsa, m) {
  implement(m, "decode", &decode_by<decode>);
  implement(m, "decode_with_selection", &decode_with_selection_by<decode_with_selection>);
}
TORCH_LIBRARY_IMPL(gsa, Meta, m) {
  m.impl("decode", &decode_by<decode_fake>);
  m.impl("decode_with_selection", &decode_with_selection_by<decode_with_selection_fake>);
}
TORCH_LIBRARY_IMPL(gsa, Autograd, m) {
  m.impl("decode", not_differentiable());
  m.impl("decode_with_selection", not_differentiable());
}

}  // namespace gsa::binding

namespace gsa::ops {

using binding::tensors_of;

Decoded decode(const Tensor& q, const PagedCache& cache, const std::optional<IndexerInputs>& indexer,
               const BudgetOptions& budget, const OptTensor& gate, std::optional<double> scale) {
  const OptTensor none;
  const bool sparse = indexer.has_value();
  const OptTensor index_q = sparse ? OptTensor(indexer->q) : none;
  const OptTensor index_w = sparse ? OptTensor(indexer->w) : none;
  auto [out, lse, k_t] = binding::call_decode({.q = q,
                                               .k = cache.k,
                                               .v = cache.v,
                                               .block_table = cache.block_table,
                                               .lengths = cache.lengths,
                                               .index_q = index_q,
                                               .index_k = sparse ? cache.index_k : none,
                                               .index_w = index_w,
                                               .index_bias = sparse ? indexer->bias : none,
                                               .gate = gate,
                                               .max_length = cache.max_length,
                                               .scale = scale,
                                               .index_scale = sparse ? indexer->scale : 1,
                                               .form = sparse ? indexer->form : "sigmoid",
                                               .budget = tensors_of(budget),
                                               .index_k_scale = sparse ? cache.index_k_scale : none,
                                               .selected = none,
                                               .selected_k = none});
  return {out, lse, k_t};
}

DecodedSelection decode_with_selection(const Tensor& q, const PagedCache& cache, const IndexerInputs& indexer,
                                       const BudgetOptions& budget, const OptTensor& gate,
                                       std::optional<double> scale) {
  if (!cache.index_k) bad_argument("decode_with_selection", "index_k", "a tensor", "None");
  const OptTensor none, index_q = indexer.q, index_w = indexer.w;
  auto [out, lse, k_t, selected] = binding::call_decode_with_selection({.q = q,
                                                                        .k = cache.k,
                                                                        .v = cache.v,
                                                                        .block_table = cache.block_table,
                                                                        .lengths = cache.lengths,
                                                                        .index_q = index_q,
                                                                        .index_k = cache.index_k,
                                                                        .index_w = index_w,
                                                                        .index_bias = indexer.bias,
                                                                        .gate = gate,
                                                                        .max_length = cache.max_length,
                                                                        .scale = scale,
                                                                        .index_scale = indexer.scale,
                                                                        .form = indexer.form,
                                                                        .budget = tensors_of(budget),
                                                                        .index_k_scale = cache.index_k_scale,
                                                                        .selected = none,
                                                                        .selected_k = none});
  return {{out, lse, k_t}, {selected, k_t}};
}

Decoded decode_selected(const Tensor& q, const PagedCache& cache, const SelectedPositions& selection,
                        const OptTensor& gate, std::optional<double> scale) {
  const OptTensor none, positions = selection.positions, k_of = selection.k_t;
  const BudgetOptions unused;
  auto [out, lse, k_t] = binding::call_decode({.q = q,
                                               .k = cache.k,
                                               .v = cache.v,
                                               .block_table = cache.block_table,
                                               .lengths = cache.lengths,
                                               .index_q = none,
                                               .index_k = none,
                                               .index_w = none,
                                               .index_bias = none,
                                               .gate = gate,
                                               .max_length = cache.max_length,
                                               .scale = scale,
                                               .index_scale = 1,
                                               .form = "sigmoid",
                                               .budget = tensors_of(unused),
                                               .index_k_scale = none,
                                               .selected = positions,
                                               .selected_k = k_of});
  return {out, lse, k_t};
}

}  // namespace gsa::ops
