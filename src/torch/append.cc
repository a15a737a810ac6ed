// append: the new rows of the cache, and the queries, out of one product. kernels/append/append.h says what
// it computes.
#include "gsa/error.h"
#include "torch/arguments.h"
#include "torch/backend.h"
#include "torch/operators.h"
#include "torch/ops.h"

namespace gsa::binding {

TORCH_LIBRARY_FRAGMENT(gsa, m) {
  // From x [T, columns], the product of a layer's input with every matrix that reads it, in the order
  // [q | k | v | index_q | index_k | value gate | ... | index_w from index_w_column on]: queries rotated by
  // their positions, and keys (rotated), values (gated) and indexer keys (rotated) written into the rows
  // `slots` (page * page_size + row) of the cache's pages. Shapes of the cache as in decode. No gradient.
  m.def(
      "append(Tensor x, Tensor cos, Tensor sin, Tensor? index_cos, Tensor? index_sin, Tensor slots, "
      "Tensor(a!) k, Tensor(b!) v, Tensor(c!)? index_k, Tensor(d!)? index_k_scale, *, int q_heads, "
      "int index_heads=0, int value_gate=0, int index_w_column=0, bool sigmoid_w=True) "
      "-> (Tensor q, Tensor index_q, Tensor index_w)");
}

namespace {

constexpr char kAppend[] = "append";

// ---- Arguments

// The registered signature; `run` is the implementation or the fake kernel.
template <Tensor3 (*run)(const ops::AppendInputs& in)>
Tensor3 append_by(const Tensor& x, const Tensor& cos, const Tensor& sin, const OptTensor& index_cos,
                  const OptTensor& index_sin, const Tensor& slots, const Tensor& k, const Tensor& v,
                  const OptTensor& index_k, const OptTensor& index_k_scale, std::int64_t q_heads,
                  std::int64_t index_heads, std::int64_t value_gate, std::int64_t index_w_column,
                  bool sigmoid_w) {
  return run({.x = x,
              .cos = cos,
              .sin = sin,
              .index_cos = index_cos,
              .index_sin = index_sin,
              .slots = slots,
              .k = k,
              .v = v,
              .index_k = index_k,
              .index_k_scale = index_k_scale,
              .q_heads = q_heads,
              .index_heads = index_heads,
              .value_gate = value_gate,
              .index_w_column = index_w_column,
              .sigmoid_w = sigmoid_w});
}

struct BoundAppend {
  Tensor x, cos, sin, index_cos, index_sin, slots;  // what args point into
  AppendArgs args;
  ops::Appended results;
};

void check_pool(const char* name, const Tensor& pool, at::ScalarType type, const Shape& shape,
                const at::Device& device) {
  check_like(kAppend, name, pool, type, shape, device);
  if (!pool.is_contiguous()) bad_argument(kAppend, name, "contiguous pages", "pages that are not");
}

BoundAppend bind_append(const ops::AppendInputs& in) {
  constexpr std::int64_t kMaxCacheHeads = 1 << 20;
  check_rank(kAppend, "x", in.x, 2, "[T, columns]");
  check_rank(kAppend, "k", in.k, 4, "[pages, page size, key/value heads, d]");
  const DType dtype = dtype_of(kAppend, "x", in.x, /*allow_float32=*/true);
  const at::ScalarType type = in.x.scalar_type(), real = real_type(dtype);
  const at::Device device = in.x.device();
  const std::int64_t tokens = in.x.size(0), pages = in.k.size(0), page = in.k.size(1);
  check_pool("k", in.k, type, in.k.sizes().vec(), device);
  check_pool("v", in.v, type, in.k.sizes().vec(), device);
  check_like(kAppend, "slots", in.slots, at::kLong, {tokens}, device);
  check_range(kAppend, "k", "a number of key/value heads", in.k.size(2), 1, kMaxCacheHeads);
  check_range(kAppend, "k", "a head size", in.k.size(3), 1, kMaxHeadSize);
  check_range(kAppend, "q_heads", "a number of heads", in.q_heads, 1, kMaxCacheHeads);
  check_range(kAppend, "index_heads", "a number of heads", in.index_heads, 0, kMaxIndexHeads);
  check_rotary_tables(kAppend, {"cos", in.cos, "sin", in.sin}, tokens, in.k.size(3), real, device);
  BoundAppend bound;
  bound.x = in.x.stride(1) == 1 ? in.x : in.x.contiguous();
  bound.cos = in.cos.contiguous();
  bound.sin = in.sin.contiguous();
  bound.slots = in.slots.contiguous();
  AppendArgs& args = bound.args;
  args.dtype = dtype;
  args.tokens = tokens;
  args.q_heads = in.q_heads;
  args.kv_heads = in.k.size(2);
  args.head_size = in.k.size(3);
  args.pairs = in.cos.size(1);
  args.index_heads = in.index_heads;
  args.value_gate = in.value_gate;
  args.index_w_column = in.index_w_column;
  args.sigmoid_w = in.sigmoid_w;
  if (in.x.size(1) > bound.x.stride(0) && tokens > 1) {
    bad_argument(kAppend, "x", "rows that do not overlap", concat("a row stride of ", bound.x.stride(0)));
  }
  // One row has no stride that counts.
  args.x_stride = tokens > 1 ? bound.x.stride(0) : in.x.size(1);
  args.rows = pages * page;
  if (in.index_heads > 0) {
    for (const auto& [name, tensor] :
         {std::pair("index_k", &in.index_k), std::pair("index_cos", &in.index_cos),
          std::pair("index_sin", &in.index_sin)}) {
      if (!tensor->has_value()) bad_argument(kAppend, name, "a tensor, as there are index_heads", "None");
    }
    check_rank(kAppend, "index_k", *in.index_k, 3, "[pages, page size, d]");
    const std::int64_t size = in.index_k->size(2);
    check_range(kAppend, "index_k", "a head size", size, 1, kMaxHeadSize);
    check_pool("index_k", *in.index_k, in.index_k_scale ? at::kChar : type, {pages, page, size}, device);
    if (in.index_k_scale) check_pool("index_k_scale", *in.index_k_scale, at::kFloat, {pages, page}, device);
    check_rotary_tables(kAppend, {"index_cos", *in.index_cos, "index_sin", *in.index_sin}, tokens, size, real,
                        device);
    bound.index_cos = in.index_cos->contiguous();
    bound.index_sin = in.index_sin->contiguous();
    args.index_head_size = size;
    args.index_pairs = in.index_cos->size(1);
    args.index_cos = data_of(bound.index_cos);
    args.index_sin = data_of(bound.index_sin);
    args.index_k = in.index_k->mutable_data_ptr();
    if (in.index_k_scale) args.index_scale = in.index_k_scale->mutable_data_ptr<float>();
  }
  const auto made = [&](const Shape& shape) { return empty(kAppend, "x", shape, type, device); };
  bound.results.q = made({tokens, args.q_heads, args.head_size});
  bound.results.index_q = made({tokens, args.index_heads, args.index_head_size});
  bound.results.index_w = made({tokens, args.index_heads});
  args.x = data_of(bound.x);
  args.cos = data_of(bound.cos);
  args.sin = data_of(bound.sin);
  args.slots = static_cast<const std::int64_t*>(data_of(bound.slots));
  args.k = in.k.mutable_data_ptr();
  args.v = in.v.mutable_data_ptr();
  args.q = bound.results.q.mutable_data_ptr();
  args.index_q = bound.results.index_q.mutable_data_ptr();
  args.index_w = bound.results.index_w.mutable_data_ptr();
  // Columns are checked here in the words of the tensor; the kernel checks strides.
  const std::int64_t needed = args.index_heads > 0
                                  ? args.index_w_column + args.index_heads
                                  : (args.q_heads + 2 * args.kv_heads) * args.head_size + args.value_gate;
  if (in.x.size(1) < needed)
    bad_argument(kAppend, "x", concat("at least ", needed, " columns"), concat(in.x.size(1)));
  return bound;
}

// ---- Implementation

Tensor3 append(const ops::AppendInputs& in) {
  const BoundAppend bound = bind_append(in);
  backend_of(in.x)->append(bound.args);
  return {bound.results.q, bound.results.index_q, bound.results.index_w};
}

// ---- Fake kernel

Tensor3 append_fake(const ops::AppendInputs& in) {
  check_rank(kAppend, "x", in.x, 2, "[T, columns]");
  check_rank(kAppend, "k", in.k, 4, "[pages, page size, key/value heads, d]");
  if (in.index_k) check_rank(kAppend, "index_k", *in.index_k, 3, "[pages, page size, d]");
  const c10::SymInt tokens = in.x.sym_size(0);
  const c10::SymInt size = in.index_k ? in.index_k->sym_size(2) : c10::SymInt(0);
  return {in.x.new_empty_symint({tokens, in.q_heads, in.k.sym_size(3)}),
          in.x.new_empty_symint({tokens, in.index_heads, size}),
          in.x.new_empty_symint({tokens, in.index_heads})};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(gsa, m) {
  implement(m, "append", &append_by<append>);
  works_in_place(m, "append");
}

TORCH_LIBRARY_IMPL(gsa, Meta, m) { m.impl("append", &append_by<append_fake>); }

}  // namespace gsa::binding

namespace gsa::ops {

Appended append(const AppendInputs& in) {
  static const auto op = binding::find_operator<decltype(binding::append_by<nullptr>)>("gsa::append");
  auto [q, index_q, index_w] =
      op.call(in.x, in.cos, in.sin, in.index_cos, in.index_sin, in.slots, in.k, in.v, in.index_k,
              in.index_k_scale, in.q_heads, in.index_heads, in.value_gate, in.index_w_column, in.sigmoid_w);
  return {q, index_q, index_w};
}

}  // namespace gsa::ops
