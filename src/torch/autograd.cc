// Gradients. A forward operator runs below autograd and remembers what its backward operator reads; a
// backward operator is called through the dispatcher, so that tracing sees it.
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "torch/signatures.h"

namespace gsa::binding {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// Saved tensors that were absent come back undefined.
OptTensor optional_of(const Tensor& tensor) { return tensor.defined() ? OptTensor(tensor) : OptTensor(); }
Tensor tensor_of(const OptTensor& tensor) { return tensor.value_or(Tensor()); }

// A gradient where one is wanted, nothing otherwise.
Tensor wanted(AutogradContext* ctx, std::size_t input, const Tensor& gradient) {
  return ctx->needs_input_grad(input) ? gradient : Tensor();
}

struct LayoutOptions {
  OptTensor cu_seqlens_q, cu_seqlens_k, q_position;
};

class Attend : public Function<Attend> {
 public:
  struct Options {
    OptTensor mask;
    std::optional<double> scale;
    std::string_view accumulation;
    LayoutOptions layout;
  };

  static variable_list forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                               const Options& options) {
    const at::AutoDispatchBelowADInplaceOrView below;
    static const auto op = find_operator<AttendFn>("gsa::attend");
    const LayoutOptions& layout = options.layout;
    auto [out, lse] = op.call(q, k, v, options.mask, options.scale, options.accumulation, layout.cu_seqlens_q,
                              layout.cu_seqlens_k, layout.q_position);
    ctx->save_for_backward({q, k, v, tensor_of(options.mask), out, lse, tensor_of(layout.cu_seqlens_q),
                            tensor_of(layout.cu_seqlens_k), tensor_of(layout.q_position)});
    ctx->saved_data["scale"] = options.scale;
    ctx->saved_data["accumulation"] = std::string(options.accumulation);
    ctx->mark_non_differentiable({lse});
    ctx->set_materialize_grads(false);
    return {out, lse};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    variable_list result(4);
    if (!grads[0].defined()) return result;
    const variable_list saved = ctx->get_saved_variables();
    static const auto op = find_operator<AttendBackwardFn>("gsa::attend_backward");
    auto [dq, dk, dv] =
        op.call(grads[0], saved[0], saved[1], saved[2], optional_of(saved[3]), saved[4], saved[5],
                ctx->saved_data["scale"].toOptional<double>(), ctx->saved_data["accumulation"].toStringView(),
                optional_of(saved[6]), optional_of(saved[7]), optional_of(saved[8]));
    result[0] = wanted(ctx, 0, dq);
    result[1] = wanted(ctx, 1, dk);
    result[2] = wanted(ctx, 2, dv);
    return result;
  }
};

class SparseAttend : public Function<SparseAttend> {
 public:
  struct Options {
    Tensor index_q, index_k, index_w;
    OptTensor index_bias;
    std::optional<double> scale;
    double index_scale;
    std::string_view form, budget;
    std::int64_t k_base, k_min, k_max;
    OptTensor mean_variance;
    std::string_view accumulation;
    LayoutOptions layout;
    bool keep_mask;
    std::optional<c10::SymInt> max_keys;  // the width of that mask
  };

  static variable_list forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                               const Options& options) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const LayoutOptions& layout = options.layout;
    const auto call = [&](const auto& op, const auto&... width) {
      return op.call(q, k, v, options.index_q, options.index_k, options.index_w, options.index_bias,
                     options.scale, options.index_scale, options.form, options.budget, options.k_base,
                     options.k_min, options.k_max, options.mean_variance, options.accumulation,
                     layout.cu_seqlens_q, layout.cu_seqlens_k, layout.q_position, width...);
    };
    Tensor out, lse, k_t, variance, threshold, tie_cut, mask;
    if (options.keep_mask) {
      static const auto op = find_operator<SparseAttendWithMaskFn>("gsa::sparse_attend_with_mask");
      std::tie(out, lse, k_t, variance, threshold, tie_cut, mask) = call(op, options.max_keys);
    } else {
      static const auto op = find_operator<SparseAttendFn>("gsa::sparse_attend");
      std::tie(out, lse, k_t, variance, threshold, tie_cut) = call(op);
    }
    ctx->save_for_backward({q, k, v, options.index_q, options.index_k, options.index_w,
                            tensor_of(options.index_bias), out, lse, threshold, tie_cut, mask,
                            tensor_of(layout.cu_seqlens_q), tensor_of(layout.cu_seqlens_k),
                            tensor_of(layout.q_position)});
    ctx->saved_data["scale"] = options.scale;
    ctx->saved_data["index_scale"] = options.index_scale;
    ctx->saved_data["form"] = std::string(options.form);
    ctx->saved_data["k_max"] = options.k_max;
    ctx->saved_data["accumulation"] = std::string(options.accumulation);
    variable_list results = {out, lse, k_t, variance, threshold, tie_cut};
    if (options.keep_mask) results.push_back(mask);
    ctx->mark_non_differentiable({results.begin() + 1, results.end()});
    ctx->set_materialize_grads(false);
    return results;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    variable_list result(4);
    if (!grads[0].defined()) return result;
    const variable_list saved = ctx->get_saved_variables();
    static const auto op = find_operator<SparseAttendBackwardFn>("gsa::sparse_attend_backward");
    auto [dq, dk, dv] = op.call(
        grads[0], saved[0], saved[1], saved[2], saved[3], saved[4], saved[5], optional_of(saved[6]), saved[7],
        saved[8], saved[9], saved[10], optional_of(saved[11]), ctx->saved_data["scale"].toOptional<double>(),
        ctx->saved_data["index_scale"].toDouble(), ctx->saved_data["form"].toStringView(),
        ctx->saved_data["k_max"].toInt(), ctx->saved_data["accumulation"].toStringView(),
        optional_of(saved[12]), optional_of(saved[13]), optional_of(saved[14]));
    result[0] = wanted(ctx, 0, dq);
    result[1] = wanted(ctx, 1, dk);
    result[2] = wanted(ctx, 2, dv);
    return result;
  }
};

class Gate : public Function<Gate> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& z) {
    const at::AutoDispatchBelowADInplaceOrView below;
    static const auto op = find_operator<GateFn>("gsa::gate");
    ctx->save_for_backward({x, z});
    ctx->set_materialize_grads(false);
    return op.call(x, z);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    if (!grads[0].defined()) return variable_list(2);
    const variable_list saved = ctx->get_saved_variables();
    static const auto op = find_operator<GateBackwardFn>("gsa::gate_backward");
    auto [dx, dz] = op.call(grads[0], saved[0], saved[1]);
    return {wanted(ctx, 0, dx), wanted(ctx, 1, dz)};
  }
};

class IndexerKl : public Function<IndexerKl> {
 public:
  struct Options {
    Tensor q, k, lse;
    OptTensor mask, threshold, tie_cut, query_tiles;
    std::optional<double> scale;
    double index_scale;
    std::string_view form;
    LayoutOptions layout;
  };

  static variable_list forward(AutogradContext* ctx, const Tensor& index_q, const Tensor& index_k,
                               const Tensor& index_w, const OptTensor& index_bias, const Options& options) {
    const at::AutoDispatchBelowADInplaceOrView below;
    static const auto op = find_operator<IndexerKlFn>("gsa::indexer_kl");
    const LayoutOptions& layout = options.layout;
    auto [loss, index_lse] =
        op.call(options.q, options.k, options.lse, index_q, index_k, index_w, index_bias, options.mask,
                options.threshold, options.tie_cut, options.query_tiles, options.scale, options.index_scale,
                options.form, layout.cu_seqlens_q, layout.cu_seqlens_k, layout.q_position);
    ctx->save_for_backward({options.q, options.k, options.lse, index_q, index_k, index_w,
                            tensor_of(index_bias), tensor_of(options.mask), tensor_of(options.threshold),
                            tensor_of(options.tie_cut), index_lse, tensor_of(layout.cu_seqlens_q),
                            tensor_of(layout.cu_seqlens_k), tensor_of(layout.q_position),
                            tensor_of(options.query_tiles)});
    ctx->saved_data["scale"] = options.scale;
    ctx->saved_data["index_scale"] = options.index_scale;
    ctx->saved_data["form"] = std::string(options.form);
    ctx->mark_non_differentiable({index_lse});
    ctx->set_materialize_grads(false);
    return {loss, index_lse};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    variable_list result(5);
    if (!grads[0].defined()) return result;
    const variable_list saved = ctx->get_saved_variables();
    static const auto op = find_operator<IndexerKlBackwardFn>("gsa::indexer_kl_backward");
    auto [dq, dk, dw, dbias] =
        op.call(grads[0], saved[0], saved[1], saved[2], saved[3], saved[4], saved[5], optional_of(saved[6]),
                optional_of(saved[7]), optional_of(saved[8]), optional_of(saved[9]), saved[10],
                optional_of(saved[14]), ctx->saved_data["scale"].toOptional<double>(),
                ctx->saved_data["index_scale"].toDouble(), ctx->saved_data["form"].toStringView(),
                optional_of(saved[11]), optional_of(saved[12]), optional_of(saved[13]));
    result[0] = wanted(ctx, 0, dq);
    result[1] = wanted(ctx, 1, dk);
    result[2] = wanted(ctx, 2, dw);
    if (saved[6].defined()) result[3] = wanted(ctx, 3, dbias);
    return result;
  }
};

Tensor2 attend_autograd(const Tensor& q, const Tensor& k, const Tensor& v, const OptTensor& mask,
                        std::optional<double> scale, std::string_view accumulation,
                        const OptTensor& cu_seqlens_q, const OptTensor& cu_seqlens_k,
                        const OptTensor& q_position) {
  const Attend::Options options{mask, scale, accumulation, {cu_seqlens_q, cu_seqlens_k, q_position}};
  const variable_list results = Attend::apply(q, k, v, options);
  return {results[0], results[1]};
}

// Rebuilding the mask from thresholds costs the scores once more. It is kept where somebody will want it,
// and where it takes no more memory than q, which is kept anyway: that bounds memory by a line. (The mask
// of packed sequences is as wide as the longest, which shapes do not tell.)
bool keeps_mask(const Tensor& q, const Tensor& k, const Tensor& v, const OptTensor& cu_seqlens_q) {
  if (!at::GradMode::is_enabled() || !(q.requires_grad() || k.requires_grad() || v.requires_grad())) {
    return false;
  }
  if (cu_seqlens_q || q.dim() != 4 || k.dim() != 4) return false;
  const c10::SymInt words = (k.sym_size(1) + 31) / 32;
  return words * 4 <= q.sym_size(2) * q.sym_size(3) * static_cast<std::int64_t>(q.element_size());
}

Tensor6 sparse_attend_autograd(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& index_q,
                               const Tensor& index_k, const Tensor& index_w, const OptTensor& index_bias,
                               std::optional<double> scale, double index_scale, std::string_view form,
                               std::string_view budget, std::int64_t k_base, std::int64_t k_min,
                               std::int64_t k_max, const OptTensor& mean_variance,
                               std::string_view accumulation, const OptTensor& cu_seqlens_q,
                               const OptTensor& cu_seqlens_k, const OptTensor& q_position) {
  const SparseAttend::Options options{index_q,
                                      index_k,
                                      index_w,
                                      index_bias,
                                      scale,
                                      index_scale,
                                      form,
                                      budget,
                                      k_base,
                                      k_min,
                                      k_max,
                                      mean_variance,
                                      accumulation,
                                      {cu_seqlens_q, cu_seqlens_k, q_position},
                                      keeps_mask(q, k, v, cu_seqlens_q),
                                      std::nullopt};
  const variable_list results = SparseAttend::apply(q, k, v, options);
  return {results[0], results[1], results[2], results[3], results[4], results[5]};
}

Tensor7 sparse_attend_with_mask_autograd(const Tensor& q, const Tensor& k, const Tensor& v,
                                         const Tensor& index_q, const Tensor& index_k, const Tensor& index_w,
                                         const OptTensor& index_bias, std::optional<double> scale,
                                         double index_scale, std::string_view form, std::string_view budget,
                                         std::int64_t k_base, std::int64_t k_min, std::int64_t k_max,
                                         const OptTensor& mean_variance, std::string_view accumulation,
                                         const OptTensor& cu_seqlens_q, const OptTensor& cu_seqlens_k,
                                         const OptTensor& q_position, std::optional<c10::SymInt> max_keys) {
  const SparseAttend::Options options{index_q,      index_k,
                                      index_w,      index_bias,
                                      scale,        index_scale,
                                      form,         budget,
                                      k_base,       k_min,
                                      k_max,        mean_variance,
                                      accumulation, {cu_seqlens_q, cu_seqlens_k, q_position},
                                      true,         std::move(max_keys)};
  const variable_list results = SparseAttend::apply(q, k, v, options);
  return {results[0], results[1], results[2], results[3], results[4], results[5], results[6]};
}

Tensor gate_autograd(const Tensor& x, const Tensor& z) { return Gate::apply(x, z); }

Tensor2 indexer_kl_autograd(const Tensor& q, const Tensor& k, const Tensor& lse, const Tensor& index_q,
                            const Tensor& index_k, const Tensor& index_w, const OptTensor& index_bias,
                            const OptTensor& mask, const OptTensor& threshold, const OptTensor& tie_cut,
                            const OptTensor& query_tiles, std::optional<double> scale, double index_scale,
                            std::string_view form, const OptTensor& cu_seqlens_q,
                            const OptTensor& cu_seqlens_k, const OptTensor& q_position) {
  const IndexerKl::Options options{q,
                                   k,
                                   lse,
                                   mask,
                                   threshold,
                                   tie_cut,
                                   query_tiles,
                                   scale,
                                   index_scale,
                                   form,
                                   {cu_seqlens_q, cu_seqlens_k, q_position}};
  const variable_list results = IndexerKl::apply(index_q, index_k, index_w, index_bias, options);
  return {results[0], results[1]};
}

}  // namespace

TORCH_LIBRARY_IMPL(gsa, Autograd, m) {
  m.impl("attend", &attend_autograd);
  m.impl("sparse_attend", &sparse_attend_autograd);
  m.impl("sparse_attend_with_mask", &sparse_attend_with_mask_autograd);
  m.impl("gate", &gate_autograd);
  m.impl("indexer_kl", &indexer_kl_autograd);
  for (const char* name : {"select", "select_mask", "index_scores"}) {
    m.impl(name, no_gradient());
  }
  // Differentiating one of these is an error that names it.
  for (const char* name :
       {"attend_backward", "sparse_attend_backward", "gate_backward", "indexer_kl_backward", "attend_lse",
        "decode", "few_linear", "quantize_index_keys"}) {
    m.impl(name, not_differentiable());
  }
}

}  // namespace gsa::binding
