#include "torch/decode_arguments.h"

#include <cmath>

#include "gsa/error.h"

namespace gsa::binding {

namespace {

constexpr std::int64_t kMaxCudaQueries = 16;
constexpr std::int64_t kLeastPage = 8, kLargestPage = 1024;

// Pages with a contiguous last dimension; other strides are free, so that a cache may interleave what it
// holds.
Tensor bind_pages(const Tensor& pages) { return pages.stride(-1) == 1 ? pages : pages.contiguous(); }

ConstPages head_pages(const Tensor& pages) {
  return {pages.const_data_ptr(), pages.stride(0), pages.stride(1), pages.stride(2)};
}
ConstPages vector_pages(const Tensor& pages) {
  return {pages.const_data_ptr(), pages.stride(0), pages.stride(1), 0};
}

void check_page_size(const char* op, std::int64_t size) {
  if (size < kLeastPage || size > kLargestPage || (size & (size - 1)) != 0) {
    bad_argument(op, "k", concat("a page size that is a power of two in ", kLeastPage, " .. ", kLargestPage),
                 concat(size));
  }
}

void bind_attention_of(const char* op, const DecodeTensors& tensors, BoundDecode& bound) {
  const Tensor &q = tensors.q, &k = tensors.k;
  check_rank(op, "q", q, 4, "[B, L, heads, d]");
  check_rank(op, "k", k, 4, "[pages, page size, key/value heads, d]");
  const std::int64_t batch = q.size(0), queries = q.size(1), heads = q.size(2), size = q.size(3);
  check_range(op, "q", "a number of sequences", batch, 0, kMaxSequences);
  check_range(op, "q", "a number of queries a sequence", queries, 1,
              q.is_cuda() ? kMaxCudaQueries : kMaxTokens);
  check_page_size(op, k.size(1));
  const TokenLayout layout{.q_tokens = {batch, queries},
                           .k_tokens = {k.size(0), k.size(1)},
                           .longest_keys = 0,
                           .table = {},
                           .device = q.device()};
  bound.args.shape = attention_shape(op, q, k, &tensors.v, tensors.scale, layout);
  bound.q = head_rows(q);
  bound.k = bind_pages(k);
  bound.v = bind_pages(tensors.v);
  bound.args.sequences = batch;
  bound.args.queries = queries;
  bound.args.q = bound.q.rows;
  bound.args.k = head_pages(bound.k);
  bound.args.v = head_pages(bound.v);
  if (!tensors.gate) return;
  const bool head_wise = tensors.gate->dim() == 3;
  const Shape shape = head_wise ? Shape{batch, queries, heads} : Shape{batch, queries, heads, size};
  check_like(op, "gate", *tensors.gate, q.scalar_type(), shape, q.device());
  bound.gate = head_wise ? scalar_rows(*tensors.gate) : head_rows(*tensors.gate);
  bound.args.gate = bound.gate.rows;
  bound.args.head_wise = head_wise;
}

void bind_indexer_of(const char* op, const DecodeTensors& tensors, BoundDecode& bound) {
  const bool wanted = tensors.index_q.has_value();
  const auto check_given = [&](const char* name, bool given) {
    if (given != wanted) {
      bad_argument(op, name, wanted ? "a tensor, as index_q is given" : "None, as index_q is",
                   given ? "a tensor" : "None");
    }
  };
  check_given("index_k", tensors.index_k.has_value());
  check_given("index_w", tensors.index_w.has_value());
  if (!wanted) {
    if (tensors.index_bias) check_given("index_bias", true);
    if (tensors.index_k_scale) check_given("index_k_scale", true);
    return;
  }
  const Tensor &q = *tensors.index_q, &k = *tensors.index_k;
  check_rank(op, "index_q", q, 4, "[B, L, indexer heads, d]");
  check_rank(op, "index_k", k, 3, "[pages, page size, d]");
  check_device(op, "index_q", q, tensors.q.device());
  check_type(op, "index_q", q, tensors.q.scalar_type());
  const TokenLayout layout{.q_tokens = {tensors.q.size(0), tensors.q.size(1)},
                           .k_tokens = {tensors.k.size(0), tensors.k.size(1)},
                           .longest_keys = 0,
                           .table = {},
                           .device = tensors.q.device()};
  const bool eight_bit = tensors.index_k_scale.has_value();
  const BoundIndexer indexer = bind_indexer_but_keys(
      op, kIndexNames, {q, k, *tensors.index_w, tensors.index_bias, tensors.index_scale, tensors.form},
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
    const Tensor& scale = *tensors.index_k_scale;
    check_like(op, "index_k_scale", scale, at::kFloat, {k.size(0), k.size(1)}, q.device());
    bound.index_k_scale = bind_pages(scale);
    bound.args.index_k_scale = bound.index_k_scale.const_data_ptr<float>();
    bound.args.index_k_scale_stride = bound.index_k_scale.stride(0);
  }
  bound.args.index_bias = indexer.view.bias;
  bound.args.index_scale = indexer.view.scale;
  bound.args.form = indexer.view.form;
}

void bind_pages_of(const char* op, const DecodeTensors& tensors, BoundDecode& bound) {
  const std::int64_t batch = tensors.q.size(0), page = tensors.k.size(1);
  const at::Device device = tensors.q.device();
  check_rank(op, "block_table", tensors.block_table, 2, "[B, blocks]");
  check_like(op, "block_table", tensors.block_table, at::kInt, {batch, tensors.block_table.size(1)}, device);
  check_like(op, "lengths", tensors.lengths, at::kInt, {batch}, device);
  check_range(op, "max_length", "a length that block_table has pages for,", tensors.max_length, 1,
              std::min(kMaxTokens, tensors.block_table.size(1) * page));
  bound.block_table = tensors.block_table.contiguous();
  bound.lengths = tensors.lengths.contiguous();
  bound.args.pages = {.page_size = page,
                      .block_table = bound.block_table.const_data_ptr<std::int32_t>(),
                      .blocks = bound.block_table.size(1),
                      .length = bound.lengths.const_data_ptr<std::int32_t>()};
  bound.args.max_length = tensors.max_length;
}

}  // namespace

BoundDecode bind_decode(const char* op, const DecodeTensors& tensors) {
  BoundDecode bound;
  bind_attention_of(op, tensors, bound);
  bind_indexer_of(op, tensors, bound);
  bind_pages_of(op, tensors, bound);
  bound.budget = bind_budget(op, tensors.budget, tensors.q.device());
  bound.args.budget = bound.budget.view;

  const Tensor& q = tensors.q;
  const AttendShape& shape = bound.args.shape;
  const Shape tokens = {q.size(0), q.size(1)};
  bound.out = empty(op, "q", q.sizes().vec(), q.scalar_type(), q.device());
  bound.lse = empty(op, "q", joined(tokens, {shape.heads}), real_type(shape.dtype), q.device());
  bound.k_t = empty(op, "q", tokens, at::kInt, q.device());
  bound.args.out = result_rows(bound.out, shape.heads, shape.head_size);
  bound.args.lse = bound.lse.mutable_data_ptr();
  bound.args.k_t = bound.k_t.mutable_data_ptr<std::int32_t>();
  return bound;
}

}  // namespace gsa::binding
