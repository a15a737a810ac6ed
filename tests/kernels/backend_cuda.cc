// The tests' backend: the CUDA operators, on mirrored arguments. Two ways on a Hopper device: its own
// kernels, and those for any GPU from compute capability 8.0 on.
#include "backend.h"

#include <functional>
#include <initializer_list>
#include <type_traits>
#include <vector>

#include "cuda_call.h"
#include "fused_backend.h"
#include "gsa/error.h"
#include "indexer_kl_limits.h"
#include "kernels/adamw/adamw_cuda.h"
#include "kernels/attend/attend_cuda.h"
#include "kernels/attend_lse/attend_lse_cuda.h"
#include "kernels/attention/attend_shape.h"
#include "kernels/common/checks.h"
#include "kernels/cross_entropy/cross_entropy_cuda.h"
#include "kernels/gate/gate_cuda.h"
#include "kernels/indexer_kl/indexer_kl_cuda.h"
#include "kernels/rms_norm/rms_norm_cuda.h"
#include "kernels/rotary/rotary_cuda.h"
#include "kernels/scores/checks.h"
#include "kernels/select/select_cuda.h"
#include "kernels/swiglu/swiglu_cuda.h"

namespace gsa::testing {
namespace {

const cuda::kl::ListLimits* kl_limits = nullptr;

}  // namespace

void limit_kl(const cuda::kl::ListLimits* limits) { kl_limits = limits; }

}  // namespace gsa::testing

namespace gsa::testing::backend {
namespace {

constexpr const char* kHopper = "hopper";
constexpr const char* kGeneric = "generic";

DType real_of(DType type) { return type == DType::f64 ? DType::f64 : DType::f32; }

// Whether the operators' own checks would let the arguments pass. What they would not is handed over as it
// is: the operator has to refuse it before it touches memory.
bool sound(const std::function<void()>& checks) {
  try {
    checks();
    return true;
  } catch (const Error&) {
    return false;
  }
}

// Replaces pointers into host memory by those of device copies. Outputs come before inputs that may lie in
// them.
class Mirror {
 public:
  Mirror(CudaCall& call, DType dtype) : call_(call), dtype_(dtype) {}

  template <typename View>  // Rows, ConstRows
  void rows(View& view, std::int64_t tokens, std::int64_t heads, std::int64_t size) {
    view = call_.rows(view, tokens, heads, size, dtype_);
  }
  template <typename Pointer>
  void array(Pointer& pointer, std::int64_t count) {
    pointer = call_.array(pointer, count);
  }
  // Of the operator's type, of another one, of Real.
  template <typename Pointer>
  void elements(Pointer& pointer, std::int64_t count) {
    elements(pointer, count, dtype_);
  }
  template <typename Pointer>
  void elements(Pointer& pointer, std::int64_t count, DType type) {
    pointer = bytes(pointer, count * static_cast<std::int64_t>(size_of(type)));
  }
  template <typename Pointer>
  void reals(Pointer& pointer, std::int64_t count) {
    elements(pointer, count, real_of(dtype_));
  }

  template <typename AnyMask>  // Mask, ConstMask
  void mask(AnyMask& mask, const Sequences& s) {
    array(mask.words, s.total_queries() * mask.words_per_query);
  }
  void indexer(Indexer& x, const Sequences& s) {
    rows(x.q, s.total_queries(), x.heads, x.head_size);
    rows(x.k, s.total_keys(), 1, x.head_size);
    rows(x.w, s.total_queries(), x.heads, 1);
    elements(x.bias, x.heads);
  }
  // What attend and its backward pass both have.
  template <typename Args>
  void attention(Args& a) {
    const AttendShape& shape = a.shape;
    const std::int64_t queries = a.sequences.total_queries(), keys = a.sequences.total_keys();
    rows(a.q, queries, shape.heads, shape.head_size);
    rows(a.k, keys, shape.kv_heads, shape.head_size);
    rows(a.v, keys, shape.kv_heads, shape.head_size);
    mask(a.mask, a.sequences);
    rows(a.out, queries, shape.heads, shape.head_size);
    reals(a.lse, queries * shape.heads);
  }
  void inputs(IndexerKlInputs& in) {
    const AttendShape& shape = in.shape;
    const std::int64_t queries = in.sequences.total_queries();
    rows(in.q, queries, shape.heads, shape.head_size);
    rows(in.k, in.sequences.total_keys(), shape.kv_heads, shape.head_size);
    reals(in.lse, queries * shape.heads);
    indexer(in.indexer, in.sequences);
    mask(in.mask, in.sequences);
  }

 private:
  const void* bytes(const void* host, std::int64_t count) { return call_.input(host, count); }
  void* bytes(void* host, std::int64_t count) { return call_.output(host, count); }

  CudaCall& call_;
  DType dtype_;
};

// Arguments that pass the checks go through the device, mirrored in place; others straight to the operator,
// which has to throw.
template <typename Args>
void run(const Args& args, DType dtype, const std::function<void()>& checks,
         const std::type_identity_t<std::function<void(Args&, Mirror&)>>& mirror,
         const std::type_identity_t<std::function<void(const Args&, const cuda::Context&)>>& op) {
  CudaCall call;
  Args there = args;
  if (sound(checks)) {
    Mirror to_device(call, dtype);
    mirror(there, to_device);
  }
  call.run([&](const cuda::Context& context) { op(there, context); });
}

auto indexer_checks(const Indexer& indexer, const Sequences& sequences) {
  return [&] {
    check::sequences("", sequences);
    check::indexer("", indexer, sequences);
  };
}

auto attention_checks(const AttendShape& shape, const Sequences& sequences) {
  return [&] {
    check::attend_shape("", shape);
    check::sequences("", sequences);
  };
}

auto kl_checks(const IndexerKlInputs& in) {
  return [&] {
    attention_checks(in.shape, in.sequences)();
    indexer_checks(in.indexer, in.sequences)();
  };
}

auto gate_checks(const GateShape& shape) {
  return [&] {
    constexpr std::int64_t kMax = 1 << 20;
    for (const std::int64_t size : {shape.tokens, shape.heads, shape.head_size})
      check::in_range("", "", size, 0, kMax);
  };
}

}  // namespace

const Traits& traits() {
  static const Traits traits = {
      .dtypes = {DType::bf16, DType::f16},
      .gate_dtypes = {DType::f32, DType::bf16, DType::f16},
      .threads = false,
      .tile = 64,
      .sigmoid_error = 0x1p-12,
      .moments_around_first = true,
      .matrix_units = true,
  };
  return traits;
}

std::vector<std::string> ways() {
  if (cuda_present() && cuda::current_device().hopper()) return {kHopper, kGeneric};
  return {kGeneric};
}

void use_way(const std::string& way) {
  CudaCall::pretend(nullptr);
  if (way == kHopper || !cuda::current_device().hopper()) return;
  cuda::Device older = cuda::current_device();
  older.major = 8;
  older.minor = 6;
  older.shared_memory = 99 << 10;  // of 8.6 and 8.9, the least there is from 8.0 on
  CudaCall::pretend(&older);
}

bool rounds_weights(DType stored) { return size_of(stored) == 2; }
double error_slack(DType) { return 1; }

cuda::SelectWork* counted_select_work = nullptr;
cuda::Accumulation accumulation = cuda::Accumulation::ordered;

void select(const SelectArgs& args, const Parallel&) {
  cuda::SelectWork* work = counted_select_work;
  run(
      args, args.dtype, indexer_checks(args.indexer, args.sequences),
      [&](SelectArgs& a, Mirror& m) {
        const std::int64_t queries = a.sequences.total_queries();
        m.array(work, 1);
        m.indexer(a.indexer, a.sequences);
        m.mask(a.mask, a.sequences);
        m.array(a.k_t, queries);
        m.reals(a.variance, queries);
        m.reals(a.threshold, queries);
        m.array(a.tie_cut, queries);
      },
      [&](const SelectArgs& a, const cuda::Context& context) { cuda::select(a, context, work); });
}

void select_mask(const SelectMaskArgs& args, const Parallel&) {
  run(
      args, args.dtype, indexer_checks(args.indexer, args.sequences),
      [](SelectMaskArgs& a, Mirror& m) {
        const std::int64_t queries = a.sequences.total_queries();
        m.indexer(a.indexer, a.sequences);
        m.mask(a.mask, a.sequences);
        m.reals(a.threshold, queries);
        m.array(a.tie_cut, queries);
      },
      &cuda::select_mask);
}

void index_scores(const IndexScoresArgs& args, const Parallel&) {
  run(
      args, args.dtype, indexer_checks(args.indexer, args.sequences),
      [](IndexScoresArgs& a, Mirror& m) {
        m.indexer(a.indexer, a.sequences);
        m.reals(a.scores, a.sequences.total_queries() * a.scores_stride);
      },
      &cuda::index_scores);
}

void attend(const AttendArgs& args, const Parallel&) {
  run(
      args, args.shape.dtype, attention_checks(args.shape, args.sequences),
      [](AttendArgs& a, Mirror& m) { m.attention(a); }, &cuda::attend);
}

void attend_backward(const AttendBackwardArgs& args, const Parallel&) {
  run(
      args, args.shape.dtype, attention_checks(args.shape, args.sequences),
      [](AttendBackwardArgs& a, Mirror& m) {
        const auto& [dtype, heads, kv_heads, size, scale] = a.shape;
        const std::int64_t queries = a.sequences.total_queries(), keys = a.sequences.total_keys();
        m.attention(a);
        m.rows(a.dout, queries, heads, size);
        m.rows(a.dq, queries, heads, size);
        m.reals(a.dk, keys * kv_heads * size);
        m.reals(a.dv, keys * kv_heads * size);
      },
      [](const AttendBackwardArgs& a, const cuda::Context& context) {
        cuda::attend_backward(a, accumulation, context);
      });
}

void attend_lse(const AttendLseArgs& args, const Parallel&) {
  run(
      args, args.shape.dtype, attention_checks(args.shape, args.sequences),
      [](AttendLseArgs& a, Mirror& m) {  // the tiles stay in host memory
        const auto& [dtype, heads, kv_heads, size, scale] = a.shape;
        const std::int64_t queries = a.sequences.total_queries();
        m.rows(a.q, queries, heads, size);
        m.rows(a.k, a.sequences.total_keys(), kv_heads, size);
        m.reals(a.lse, queries * heads);
      },
      &cuda::attend_lse);
}

void gate(const GateArgs& args, const Parallel&) {
  run(
      args, args.shape.dtype, gate_checks(args.shape),
      [](GateArgs& a, Mirror& m) {
        const auto& [dtype, tokens, heads, size, head_wise] = a.shape;
        m.rows(a.y, tokens, heads, size);  // first: x may be y
        m.rows(a.x, tokens, heads, size);
        m.rows(a.z, tokens, heads, head_wise ? 1 : size);
      },
      &cuda::gate);
}

void gate_backward(const GateBackwardArgs& args, const Parallel&) {
  run(
      args, args.shape.dtype, gate_checks(args.shape),
      [](GateBackwardArgs& a, Mirror& m) {
        const auto& [dtype, tokens, heads, size, head_wise] = a.shape;
        m.rows(a.dx, tokens, heads, size);
        m.rows(a.dz, tokens, heads, head_wise ? 1 : size);
        m.rows(a.x, tokens, heads, size);
        m.rows(a.z, tokens, heads, head_wise ? 1 : size);
        m.rows(a.dy, tokens, heads, size);
      },
      &cuda::gate_backward);
}

void indexer_kl(const IndexerKlArgs& args, const Parallel&) {
  run(
      args, args.in.shape.dtype, kl_checks(args.in),
      [](IndexerKlArgs& a, Mirror& m) {
        const std::int64_t queries = a.in.sequences.total_queries();
        m.inputs(a.in);
        m.reals(a.loss, queries);
        m.reals(a.index_lse, queries);
      },
      [](const IndexerKlArgs& a, const cuda::Context& context) {
        kl_limits == nullptr ? cuda::indexer_kl(a, context)
                             : cuda::indexer_kl_in_chunks(a, *kl_limits, context);
      });
}

void indexer_kl_backward(const IndexerKlBackwardArgs& args, const Parallel&) {
  run(
      args, args.in.shape.dtype, kl_checks(args.in),
      [](IndexerKlBackwardArgs& a, Mirror& m) {
        const std::int64_t queries = a.in.sequences.total_queries(), keys = a.in.sequences.total_keys();
        const std::int64_t heads = a.in.indexer.heads, size = a.in.indexer.head_size;
        m.inputs(a.in);
        m.reals(a.index_lse, queries);
        m.reals(a.weight, queries);
        m.rows(a.dq, queries, heads, size);
        m.rows(a.dw, queries, heads, 1);
        m.reals(a.dk, keys * size);
        m.reals(a.dbias, heads);
      },
      [](const IndexerKlBackwardArgs& a, const cuda::Context& context) {
        kl_limits == nullptr ? cuda::indexer_kl_backward(a, context)
                             : cuda::indexer_kl_backward_in_chunks(a, *kl_limits, context);
      });
}

// ---- the operators of fused_backend.h: contiguous tensors

namespace {

// Sizes that a test would really allocate: what lies beyond goes to the operator as it is.
auto size_checks(std::initializer_list<std::int64_t> sizes) {
  return [sizes = std::vector<std::int64_t>(sizes)] {
    for (const std::int64_t size : sizes) check::in_range("", "", size, 0, 1 << 24);
  };
}

auto rotary_checks(const RotaryShape& s) {
  return [&] {
    size_checks({s.tokens, s.q_heads, s.k_heads, s.v_heads, s.head_size})();
    check::in_range("", "", s.pairs, 0, s.head_size / 2);
  };
}

}  // namespace

void rms_norm(const RmsNormArgs& args, const Parallel&) {
  run(
      args, args.shape.dtype, size_checks({args.shape.tokens, args.shape.size}),
      [](RmsNormArgs& a, Mirror& m) {
        const auto& [dtype, tokens, size, eps] = a.shape;
        m.elements(a.y, tokens * size);
        m.elements(a.sum, tokens * size);
        m.reals(a.rstd, tokens);
        m.elements(a.x, tokens * size);
        m.elements(a.branch, tokens * size);
        m.elements(a.weight, size);
      },
      &cuda::rms_norm);
}

void rms_norm_backward(const RmsNormBackwardArgs& args, const Parallel&) {
  run(
      args, args.shape.dtype, size_checks({args.shape.tokens, args.shape.size}),
      [](RmsNormBackwardArgs& a, Mirror& m) {
        const auto& [dtype, tokens, size, eps] = a.shape;
        m.elements(a.dx, tokens * size);
        m.reals(a.dweight, size);
        m.elements(a.dy, tokens * size);
        m.elements(a.dsum, tokens * size);
        m.elements(a.sum, tokens * size);
        m.elements(a.weight, size);
        m.reals(a.rstd, tokens);
      },
      &cuda::rms_norm_backward);
}

void rotary(const RotaryArgs& args, const Parallel&) {
  run(
      args, args.shape.dtype, rotary_checks(args.shape),
      [](RotaryArgs& a, Mirror& m) {
        const RotaryShape& s = a.shape;
        const std::int64_t head = s.tokens * s.head_size;
        m.elements(a.q, head * s.q_heads);
        m.elements(a.k, head * s.k_heads);
        m.elements(a.v, head * s.v_heads);
        m.elements(a.x, head * (s.q_heads + s.k_heads + s.v_heads));
        m.reals(a.cos, s.tokens * s.pairs);
        m.reals(a.sin, s.tokens * s.pairs);
      },
      &cuda::rotary);
}

void rotary_backward(const RotaryBackwardArgs& args, const Parallel&) {
  run(
      args, args.shape.dtype, rotary_checks(args.shape),
      [](RotaryBackwardArgs& a, Mirror& m) {
        const RotaryShape& s = a.shape;
        const std::int64_t head = s.tokens * s.head_size;
        m.elements(a.dx, head * (s.q_heads + s.k_heads + s.v_heads));
        m.elements(a.dq, head * s.q_heads);
        m.elements(a.dk, head * s.k_heads);
        m.elements(a.dv, head * s.v_heads);
        m.reals(a.cos, s.tokens * s.pairs);
        m.reals(a.sin, s.tokens * s.pairs);
      },
      &cuda::rotary_backward);
}

void swiglu(const SwigluArgs& args, const Parallel&) {
  run(
      args, args.shape.dtype, size_checks({args.shape.tokens, args.shape.size}),
      [](SwigluArgs& a, Mirror& m) {
        const auto& [dtype, tokens, size] = a.shape;
        m.elements(a.y, tokens * size);
        m.elements(a.x, tokens * 2 * size);
      },
      &cuda::swiglu);
}

void swiglu_backward(const SwigluBackwardArgs& args, const Parallel&) {
  run(
      args, args.shape.dtype, size_checks({args.shape.tokens, args.shape.size}),
      [](SwigluBackwardArgs& a, Mirror& m) {
        const auto& [dtype, tokens, size] = a.shape;
        m.elements(a.dx, tokens * 2 * size);
        m.elements(a.x, tokens * 2 * size);
        m.elements(a.dy, tokens * size);
      },
      &cuda::swiglu_backward);
}

void cross_entropy(const CrossEntropyArgs& args, const Parallel&) {
  run(
      args, args.dtype, size_checks({args.tokens, args.classes}),
      [](CrossEntropyArgs& a, Mirror& m) {
        m.elements(a.logits, a.tokens * a.classes);
        m.array(a.targets, a.tokens);
        m.reals(a.loss, a.tokens);
      },
      &cuda::cross_entropy);
}

void adamw(const AdamWArgs& args, const Parallel&) {
  run(
      args, args.weight_type, size_checks({args.count}),
      [](AdamWArgs& a, Mirror& m) {
        m.array(a.master, a.count);
        m.array(a.mean, a.count);
        m.array(a.square, a.count);
        m.elements(a.weight, a.count);
        m.elements(a.gradient, a.count, a.gradient_type);
      },
      &cuda::adamw);
}

}  // namespace gsa::testing::backend
