// Schemas and implementations of the operators that stand between a training step's matrix products, on top
// of a Backend. Gradients and fake kernels are in fused_autograd.cc.
//
// Floating-point tensors of a call share one type: float32, bfloat16, float16, and float64 on the CPU. Real
// is float32, float64 for float64. Tensors that have gaps are copied first; results have none.
#include <torch/library.h>

#include "gsa/error.h"
#include "torch/backend.h"
#include "torch/signatures.h"

namespace gsa::binding {

namespace {

void* data_of(const Tensor& tensor) { return tensor.numel() > 0 ? tensor.mutable_data_ptr() : nullptr; }
const void* read(const Tensor& tensor) { return tensor.numel() > 0 ? tensor.const_data_ptr() : nullptr; }

void check_vectors(const char* op, const char* argument, const Tensor& tensor) {
  if (tensor.dim() < 1)
    bad_argument(op, argument, "at least 1 dimension [..., d]", to_string(tensor.sizes()));
}

// ---- rms_norm

// argument: the name of x.
RmsNormShape norm_shape(const char* op, const char* argument, const Tensor& x, const Tensor& weight,
                        double eps) {
  constexpr std::int64_t kMaxSize = 1 << 20;
  check_vectors(op, argument, x);
  check_range(op, argument, "a last dimension", x.size(-1), 1, kMaxSize);
  const DType dtype = dtype_of(op, argument, x, /*allow_float32=*/true);
  check_like(op, "weight", weight, x.scalar_type(), {x.size(-1)}, x.device());
  const std::int64_t size = x.size(-1);
  return {.dtype = dtype, .tokens = x.numel() / size, .size = size, .eps = eps};
}

Shape token_shape(const Tensor& x) { return x.sizes().slice(0, static_cast<std::size_t>(x.dim() - 1)).vec(); }

Tensor3 rms_norm(const Tensor& x, const OptTensor& branch, const Tensor& weight, double eps) {
  constexpr char op[] = "rms_norm";
  const RmsNormShape shape = norm_shape(op, "x", x, weight, eps);
  if (branch) check_like(op, "branch", *branch, x.scalar_type(), x.sizes().vec(), x.device());
  const Tensor in = x.contiguous(), more = branch ? branch->contiguous() : Tensor(), w = weight.contiguous();
  const Tensor y = empty(op, "x", x.sizes().vec(), x.scalar_type(), x.device());
  const Tensor sum = branch ? empty(op, "x", x.sizes().vec(), x.scalar_type(), x.device())
                            : empty(op, "x", {0}, x.scalar_type(), x.device());
  const Tensor rstd = empty(op, "x", token_shape(x), real_type(shape.dtype), x.device());
  backend_of(x)->rms_norm({.shape = shape,
                           .x = read(in),
                           .branch = branch ? read(more) : nullptr,
                           .weight = read(w),
                           .y = data_of(y),
                           .sum = branch ? data_of(sum) : nullptr,
                           .rstd = data_of(rstd)});
  return {y, sum, rstd};
}

Tensor2 rms_norm_backward(const Tensor& dy, const OptTensor& dsum, const Tensor& sum, const Tensor& weight,
                          const Tensor& rstd) {
  constexpr char op[] = "rms_norm_backward";
  const RmsNormShape shape = norm_shape(op, "sum", sum, weight, 0);
  check_like(op, "dy", dy, sum.scalar_type(), sum.sizes().vec(), sum.device());
  if (dsum) check_like(op, "dsum", *dsum, sum.scalar_type(), sum.sizes().vec(), sum.device());
  check_like(op, "rstd", rstd, real_type(shape.dtype), token_shape(sum), sum.device());
  const Tensor d = dy.contiguous(), other = dsum ? dsum->contiguous() : Tensor(), s = sum.contiguous();
  const Tensor w = weight.contiguous(), r = rstd.contiguous();
  const Tensor dx = empty(op, "sum", sum.sizes().vec(), sum.scalar_type(), sum.device());
  const Tensor dweight = empty(op, "weight", {shape.size}, real_type(shape.dtype), sum.device());
  backend_of(sum)->rms_norm_backward({.shape = shape,
                                      .dy = read(d),
                                      .dsum = dsum ? read(other) : nullptr,
                                      .sum = read(s),
                                      .weight = read(w),
                                      .rstd = read(r),
                                      .dx = data_of(dx),
                                      .dweight = data_of(dweight)});
  return {dx, dweight.to(weight.scalar_type())};
}

// ---- rotary

constexpr std::int64_t kMaxRotaryHeads = 1 << 20, kMaxRotarySize = 256;

RotaryShape rotary_shape(DType dtype, std::int64_t tokens, const Tensor& cos, std::int64_t q_heads,
                         std::int64_t k_heads, std::int64_t v_heads, std::int64_t head_size) {
  return {.dtype = dtype,
          .tokens = tokens,
          .q_heads = q_heads,
          .k_heads = k_heads,
          .v_heads = v_heads,
          .head_size = head_size,
          .pairs = cos.size(1)};
}

void check_tables(const char* op, DType dtype, std::int64_t tokens, std::int64_t head_size, const Tensor& cos,
                  const Tensor& sin, const at::Device& device) {
  check_rank(op, "cos", cos, 2, "[T, pairs]");
  check_range(op, "cos", "pairs, at most half a head,", cos.size(1), 0, head_size / 2);
  check_like(op, "cos", cos, real_type(dtype), {tokens, cos.size(1)}, device);
  check_like(op, "sin", sin, real_type(dtype), {tokens, cos.size(1)}, device);
}

Tensor3 rotary(const Tensor& x, const Tensor& cos, const Tensor& sin, std::int64_t q_heads,
               std::int64_t k_heads, std::int64_t v_heads) {
  constexpr char op[] = "rotary";
  check_rank(op, "x", x, 2, "[T, heads x head_size]");
  const DType dtype = dtype_of(op, "x", x, /*allow_float32=*/true);
  const std::int64_t tokens = x.size(0), heads = q_heads + k_heads + v_heads;
  check_range(op, "q_heads", "a number of heads", q_heads, 0, kMaxRotaryHeads);
  check_range(op, "k_heads", "a number of heads", k_heads, 0, kMaxRotaryHeads);
  check_range(op, "v_heads", "a number of heads", v_heads, 0, kMaxRotaryHeads);
  if (heads == 0 || x.size(1) % heads != 0) {
    bad_argument(op, "x", concat("[T, ", heads, " heads of one size side by side]"), to_string(x.sizes()));
  }
  const std::int64_t size = x.size(1) / heads;
  check_range(op, "x", "a head size", size, 1, kMaxRotarySize);
  check_tables(op, dtype, tokens, size, cos, sin, x.device());
  const Tensor in = x.contiguous(), c = cos.contiguous(), s = sin.contiguous();
  const auto part = [&](std::int64_t count) {
    return empty(op, "x", {tokens, count, size}, x.scalar_type(), x.device());
  };
  const Tensor q = part(q_heads), k = part(k_heads), v = part(v_heads);
  backend_of(x)->rotary({.shape = rotary_shape(dtype, tokens, cos, q_heads, k_heads, v_heads, size),
                         .x = read(in),
                         .cos = read(c),
                         .sin = read(s),
                         .q = data_of(q),
                         .k = data_of(k),
                         .v = data_of(v)});
  return {q, k, v};
}

Tensor rotary_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& cos,
                       const Tensor& sin) {
  constexpr char op[] = "rotary_backward";
  const DType dtype = dtype_of(op, "dq", dq, /*allow_float32=*/true);
  check_rank(op, "dq", dq, 3, "[T, heads, head_size]");
  const std::int64_t tokens = dq.size(0), size = dq.size(2);
  check_rank(op, "dk", dk, 3, "[T, heads, head_size]");
  check_rank(op, "dv", dv, 3, "[T, heads, head_size]");
  check_like(op, "dk", dk, dq.scalar_type(), {tokens, dk.size(1), size}, dq.device());
  check_like(op, "dv", dv, dq.scalar_type(), {tokens, dv.size(1), size}, dq.device());
  check_range(op, "dq", "a head size", size, 1, kMaxRotarySize);
  check_tables(op, dtype, tokens, size, cos, sin, dq.device());
  const Tensor q = dq.contiguous(), k = dk.contiguous(), v = dv.contiguous();
  const Tensor c = cos.contiguous(), s = sin.contiguous();
  const std::int64_t heads = q.size(1) + k.size(1) + v.size(1);
  const Tensor dx = empty(op, "dq", {tokens, heads * size}, dq.scalar_type(), dq.device());
  backend_of(dq)->rotary_backward(
      {.shape = rotary_shape(dtype, tokens, cos, q.size(1), k.size(1), v.size(1), size),
       .dq = read(q),
       .dk = read(k),
       .dv = read(v),
       .cos = read(c),
       .sin = read(s),
       .dx = data_of(dx)});
  return dx;
}

// ---- swiglu

SwigluShape swiglu_shape(const char* op, const Tensor& x) {
  check_vectors(op, "x", x);
  if (x.size(-1) % 2 != 0) {
    bad_argument(op, "x", "an even last dimension: g and u side by side", to_string(x.sizes()));
  }
  const std::int64_t size = x.size(-1) / 2;
  return {.dtype = dtype_of(op, "x", x, /*allow_float32=*/true),
          .tokens = size == 0 ? 0 : x.numel() / (2 * size),
          .size = size};
}

Shape halved(const Tensor& x) {
  Shape shape = x.sizes().vec();
  shape.back() /= 2;
  return shape;
}

Tensor swiglu(const Tensor& x) {
  constexpr char op[] = "swiglu";
  const SwigluShape shape = swiglu_shape(op, x);
  const Tensor in = x.contiguous();
  const Tensor y = empty(op, "x", halved(x), x.scalar_type(), x.device());
  backend_of(x)->swiglu({.shape = shape, .x = read(in), .y = data_of(y)});
  return y;
}

Tensor swiglu_backward(const Tensor& dy, const Tensor& x) {
  constexpr char op[] = "swiglu_backward";
  const SwigluShape shape = swiglu_shape(op, x);
  check_like(op, "dy", dy, x.scalar_type(), halved(x), x.device());
  const Tensor in = x.contiguous(), d = dy.contiguous();
  const Tensor dx = empty(op, "x", x.sizes().vec(), x.scalar_type(), x.device());
  backend_of(x)->swiglu_backward({.shape = shape, .x = read(in), .dy = read(d), .dx = data_of(dx)});
  return dx;
}

// ---- cross_entropy_

Tensor cross_entropy_in_place(const Tensor& logits, const Tensor& targets, std::int64_t ignored,
                              bool gradient) {
  constexpr char op[] = "cross_entropy_";
  check_rank(op, "logits", logits, 2, "[T, classes]");
  check_range(op, "logits", "a number of classes", logits.size(1), 1, 1 << 30);
  const DType dtype = dtype_of(op, "logits", logits, /*allow_float32=*/true);
  if (!logits.is_contiguous()) bad_argument(op, "logits", "a tensor without gaps", "one with gaps");
  check_like(op, "targets", targets, at::kLong, {logits.size(0)}, logits.device());
  const Tensor wanted = targets.contiguous();
  const Tensor loss = empty(op, "logits", {logits.size(0)}, real_type(dtype), logits.device());
  backend_of(logits)->cross_entropy({.dtype = dtype,
                                     .tokens = logits.size(0),
                                     .classes = logits.size(1),
                                     .logits = data_of(logits),
                                     .targets = static_cast<const std::int64_t*>(read(wanted)),
                                     .ignored = ignored,
                                     .gradient = gradient,
                                     .loss = data_of(loss)});
  return loss;
}

// ---- adamw_

void adamw_in_place(const Tensor& master, const Tensor& mean, const Tensor& square, const OptTensor& weight,
                    const Tensor& gradient, double lr, double beta1, double beta2, double eps, double decay,
                    double factor, std::int64_t step) {
  constexpr char op[] = "adamw_";
  const auto check_array = [&](const char* name, const Tensor& tensor, at::ScalarType type) {
    check_like(op, name, tensor, type, master.sizes().vec(), master.device());
    if (!tensor.is_contiguous()) bad_argument(op, name, "a tensor without gaps", "one with gaps");
  };
  check_array("master", master, at::kFloat);
  check_array("mean", mean, at::kFloat);
  check_array("square", square, at::kFloat);
  if (weight) check_array("weight", *weight, weight->scalar_type());
  check_like(op, "gradient", gradient, gradient.scalar_type(), master.sizes().vec(), master.device());
  const Tensor g = gradient.contiguous();
  backend_of(master)->adamw(
      {.count = master.numel(),
       .gradient_type = dtype_of(op, "gradient", gradient, /*allow_float32=*/true),
       .weight_type = weight ? dtype_of(op, "weight", *weight, /*allow_float32=*/true) : DType::f32,
       .gradient = read(g),
       .master = static_cast<float*>(data_of(master)),
       .mean = static_cast<float*>(data_of(mean)),
       .square = static_cast<float*>(data_of(square)),
       .weight = weight ? data_of(*weight) : nullptr,
       .lr = lr,
       .beta1 = beta1,
       .beta2 = beta2,
       .eps = eps,
       .decay = decay,
       .factor = factor,
       .step = step});
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(gsa, m) {
  // s = x + branch, y = s / sqrt(mean(s^2) + eps) * weight over the last dimension. x, branch [..., d],
  // weight [d]; rstd Real [...]. Without a branch s is x, and sum comes back empty.
  m.def(
      "rms_norm(Tensor x, Tensor? branch, Tensor weight, float eps) -> (Tensor y, Tensor sum, Tensor rstd)");
  // dsum: the gradient that reaches s from elsewhere. sum is s: x where there was no branch. dx is the
  // gradient of x and of the branch.
  m.def(
      "rms_norm_backward(Tensor dy, Tensor? dsum, Tensor sum, Tensor weight, Tensor rstd) -> (Tensor dx, "
      "Tensor dweight)");
  // x [T, (q_heads + k_heads + v_heads) d], cos and sin Real [T, pairs], pairs <= d / 2 -> q, k, v [T, heads,
  // d]: queries and keys turned in their first 2 pairs dimensions (half-split layout), values as they are.
  m.def(
      "rotary(Tensor x, Tensor cos, Tensor sin, int q_heads, int k_heads, int v_heads) -> (Tensor q, Tensor "
      "k, "
      "Tensor v)");
  m.def("rotary_backward(Tensor dq, Tensor dk, Tensor dv, Tensor cos, Tensor sin) -> Tensor dx");
  // silu(g) u for x = [g | u], [..., 2 n] -> [..., n].
  m.def("swiglu(Tensor x) -> Tensor");
  m.def("swiglu_backward(Tensor dy, Tensor x) -> Tensor dx");
  // The loss of each row of logits [T, classes] for targets int64 [T], Real [T]; 0 where the target is
  // `ignored`. With gradient, logits become softmax(logits) minus one at the target (0 in ignored rows). A
  // target out of range is an error on the CPU and a loss of NaN on a CUDA device. No gradient of its own.
  m.def("cross_entropy_(Tensor(a!) logits, Tensor targets, int ignored=-100, bool gradient=False) -> Tensor");
  // One step of AdamW (kernels/adamw/adamw.h) for a parameter whose fp32 master, mean and square are given,
  // all of one shape; weight, where given, gets the result in its own type. step counts from 1.
  m.def(
      "adamw_(Tensor(a!) master, Tensor(b!) mean, Tensor(c!) square, Tensor(d!)? weight, Tensor gradient, *, "
      "float "
      "lr, float beta1, float beta2, float eps, float decay, float factor, int step) -> ()");
}

TORCH_LIBRARY_FRAGMENT(gsa, m) {
  implement(m, "rms_norm", &rms_norm);
  implement(m, "rms_norm_backward", &rms_norm_backward);
  implement(m, "rotary", &rotary);
  implement(m, "rotary_backward", &rotary_backward);
  implement(m, "swiglu", &swiglu);
  implement(m, "swiglu_backward", &swiglu_backward);
  implement(m, "cross_entropy_", &cross_entropy_in_place);
  implement(m, "adamw_", &adamw_in_place);
  works_in_place(m, "cross_entropy_");
  works_in_place(m, "adamw_");
}

}  // namespace gsa::binding
