// The tests' backend: the CUDA operators, on mirrored arguments. Two ways on a Hopper device: its own
// kernels, and those for any GPU from compute capability 8.0 on.
#include "backend.h"

#include <functional>

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

// Arguments that pass the checks go through the device; others straight to the operator, which has to throw.
template <typename Args>
void run(const Args& args, const std::function<void()>& checks,
         const std::function<Args(const Args&, CudaCall&)>& mirrored,
         const std::function<void(const Args&, const cuda::Context&)>& op) {
  CudaCall call;
  const Args there = sound(checks) ? mirrored(args, call) : args;
  call.run([&](const cuda::Context& context) { op(there, context); });
}

Indexer mirror(const Indexer& host, DType type, const Sequences& s, CudaCall& call) {
  Indexer there = host;
  there.q = call.rows(host.q, s.total_queries(), host.heads, host.head_size, type);
  there.k = call.rows(host.k, s.total_keys(), 1, host.head_size, type);
  there.w = call.rows(host.w, s.total_queries(), host.heads, 1, type);
  there.bias = call.input(host.bias, host.heads * static_cast<std::int64_t>(size_of(type)));
  return there;
}

ConstMask mirror(const ConstMask& host, const Sequences& s, CudaCall& call) {
  ConstMask there = host;
  there.words = call.array(host.words, s.total_queries() * host.words_per_query);
  return there;
}

Mask mirror(const Mask& host, const Sequences& s, CudaCall& call) {
  Mask there = host;
  there.words = call.array(host.words, s.total_queries() * host.words_per_query);
  return there;
}

const void* reals(const void* host, std::int64_t count, DType type, CudaCall& call) {
  return call.input(host, count * static_cast<std::int64_t>(size_of(real_of(type))));
}
void* reals(void* host, std::int64_t count, DType type, CudaCall& call) {
  return call.output(host, count * static_cast<std::int64_t>(size_of(real_of(type))));
}

void check_indexer(const Indexer& indexer, const Sequences& sequences) {
  check::sequences("", sequences);
  check::indexer("", indexer, sequences);
}

void check_attention(const AttendShape& shape, const Sequences& sequences) {
  check::attend_shape("", shape);
  check::sequences("", sequences);
}

void check_gate(const GateShape& shape) {
  constexpr std::int64_t kMost = 1 << 20;
  check::in_range("", "", shape.tokens, 0, kMost);
  check::in_range("", "", shape.heads, 0, kMost);
  check::in_range("", "", shape.head_size, 0, kMost);
}

IndexerKlInputs mirror(const IndexerKlInputs& host, CudaCall& call) {
  IndexerKlInputs there = host;
  const AttendShape& shape = host.shape;
  const std::int64_t queries = host.sequences.total_queries(), keys = host.sequences.total_keys();
  there.q = call.rows(host.q, queries, shape.heads, shape.head_size, shape.dtype);
  there.k = call.rows(host.k, keys, shape.kv_heads, shape.head_size, shape.dtype);
  there.lse = reals(host.lse, queries * shape.heads, shape.dtype, call);
  there.indexer = mirror(host.indexer, shape.dtype, host.sequences, call);
  there.mask = mirror(host.mask, host.sequences, call);
  return there;
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

double error_slack(DType) { return 1; }

cuda::SelectWork* counted_select_work = nullptr;
cuda::Accumulation accumulation = cuda::Accumulation::ordered;

void select(const SelectArgs& args, const Parallel&) {
  cuda::SelectWork* work = nullptr;
  run<SelectArgs>(
      args, [&] { check_indexer(args.indexer, args.sequences); },
      [&](const SelectArgs& host, CudaCall& call) {
        SelectArgs there = host;
        const std::int64_t queries = host.sequences.total_queries();
        work = call.array(counted_select_work, 1);
        there.indexer = mirror(host.indexer, host.dtype, host.sequences, call);
        there.mask = mirror(host.mask, host.sequences, call);
        there.k_t = call.array(host.k_t, queries);
        there.variance = reals(host.variance, queries, host.dtype, call);
        there.threshold = reals(host.threshold, queries, host.dtype, call);
        there.tie_cut = call.array(host.tie_cut, queries);
        return there;
      },
      [&](const SelectArgs& there, const cuda::Context& context) { cuda::select(there, context, work); });
}

void select_mask(const SelectMaskArgs& args, const Parallel&) {
  run<SelectMaskArgs>(
      args, [&] { check_indexer(args.indexer, args.sequences); },
      [](const SelectMaskArgs& host, CudaCall& call) {
        SelectMaskArgs there = host;
        const std::int64_t queries = host.sequences.total_queries();
        there.indexer = mirror(host.indexer, host.dtype, host.sequences, call);
        there.mask = mirror(host.mask, host.sequences, call);
        there.threshold = reals(host.threshold, queries, host.dtype, call);
        there.tie_cut = call.array(host.tie_cut, queries);
        return there;
      },
      &cuda::select_mask);
}

void index_scores(const IndexScoresArgs& args, const Parallel&) {
  run<IndexScoresArgs>(
      args, [&] { check_indexer(args.indexer, args.sequences); },
      [](const IndexScoresArgs& host, CudaCall& call) {
        IndexScoresArgs there = host;
        there.indexer = mirror(host.indexer, host.dtype, host.sequences, call);
        there.scores =
            reals(host.scores, host.sequences.total_queries() * host.scores_stride, host.dtype, call);
        return there;
      },
      &cuda::index_scores);
}

void attend(const AttendArgs& args, const Parallel&) {
  run<AttendArgs>(
      args, [&] { check_attention(args.shape, args.sequences); },
      [](const AttendArgs& host, CudaCall& call) {
        AttendArgs there = host;
        const auto& [dtype, heads, kv_heads, size, scale] = host.shape;
        const std::int64_t queries = host.sequences.total_queries(), keys = host.sequences.total_keys();
        there.q = call.rows(host.q, queries, heads, size, dtype);
        there.k = call.rows(host.k, keys, kv_heads, size, dtype);
        there.v = call.rows(host.v, keys, kv_heads, size, dtype);
        there.mask = mirror(host.mask, host.sequences, call);
        there.out = call.rows(host.out, queries, heads, size, dtype);
        there.lse = reals(host.lse, queries * heads, dtype, call);
        return there;
      },
      &cuda::attend);
}

void attend_backward(const AttendBackwardArgs& args, const Parallel&) {
  run<AttendBackwardArgs>(
      args, [&] { check_attention(args.shape, args.sequences); },
      [](const AttendBackwardArgs& host, CudaCall& call) {
        AttendBackwardArgs there = host;
        const auto& [dtype, heads, kv_heads, size, scale] = host.shape;
        const std::int64_t queries = host.sequences.total_queries(), keys = host.sequences.total_keys();
        there.q = call.rows(host.q, queries, heads, size, dtype);
        there.k = call.rows(host.k, keys, kv_heads, size, dtype);
        there.v = call.rows(host.v, keys, kv_heads, size, dtype);
        there.mask = mirror(host.mask, host.sequences, call);
        there.out = call.rows(host.out, queries, heads, size, dtype);
        there.lse = reals(host.lse, queries * heads, dtype, call);
        there.dout = call.rows(host.dout, queries, heads, size, dtype);
        there.dq = call.rows(host.dq, queries, heads, size, dtype);
        there.dk = reals(host.dk, keys * kv_heads * size, dtype, call);
        there.dv = reals(host.dv, keys * kv_heads * size, dtype, call);
        return there;
      },
      [](const AttendBackwardArgs& there, const cuda::Context& context) {
        cuda::attend_backward(there, accumulation, context);
      });
}

void attend_lse(const AttendLseArgs& args, const Parallel&) {
  run<AttendLseArgs>(
      args, [&] { check_attention(args.shape, args.sequences); },
      [](const AttendLseArgs& host, CudaCall& call) {
        AttendLseArgs there = host;  // the tiles stay in host memory
        const auto& [dtype, heads, kv_heads, size, scale] = host.shape;
        const std::int64_t queries = host.sequences.total_queries();
        there.q = call.rows(host.q, queries, heads, size, dtype);
        there.k = call.rows(host.k, host.sequences.total_keys(), kv_heads, size, dtype);
        there.lse = reals(host.lse, queries * heads, dtype, call);
        return there;
      },
      &cuda::attend_lse);
}

void gate(const GateArgs& args, const Parallel&) {
  run<GateArgs>(
      args, [&] { check_gate(args.shape); },
      [](const GateArgs& host, CudaCall& call) {
        GateArgs there = host;
        const auto& [dtype, tokens, heads, size, head_wise] = host.shape;
        there.y = call.rows(host.y, tokens, heads, size, dtype);  // first: x may be y
        there.x = call.rows(host.x, tokens, heads, size, dtype);
        there.z = call.rows(host.z, tokens, heads, head_wise ? 1 : size, dtype);
        return there;
      },
      &cuda::gate);
}

void gate_backward(const GateBackwardArgs& args, const Parallel&) {
  run<GateBackwardArgs>(
      args, [&] { check_gate(args.shape); },
      [](const GateBackwardArgs& host, CudaCall& call) {
        GateBackwardArgs there = host;
        const auto& [dtype, tokens, heads, size, head_wise] = host.shape;
        there.dx = call.rows(host.dx, tokens, heads, size, dtype);
        there.dz = call.rows(host.dz, tokens, heads, head_wise ? 1 : size, dtype);
        there.x = call.rows(host.x, tokens, heads, size, dtype);
        there.z = call.rows(host.z, tokens, heads, head_wise ? 1 : size, dtype);
        there.dy = call.rows(host.dy, tokens, heads, size, dtype);
        return there;
      },
      &cuda::gate_backward);
}

void indexer_kl(const IndexerKlArgs& args, const Parallel&) {
  run<IndexerKlArgs>(
      args,
      [&] {
        check_attention(args.in.shape, args.in.sequences);
        check_indexer(args.in.indexer, args.in.sequences);
      },
      [](const IndexerKlArgs& host, CudaCall& call) {
        const std::int64_t queries = host.in.sequences.total_queries();
        return IndexerKlArgs{mirror(host.in, call), reals(host.loss, queries, host.in.shape.dtype, call),
                             reals(host.index_lse, queries, host.in.shape.dtype, call)};
      },
      [](const IndexerKlArgs& there, const cuda::Context& context) {
        kl_limits == nullptr ? cuda::indexer_kl(there, context)
                             : cuda::indexer_kl_in_chunks(there, *kl_limits, context);
      });
}

void indexer_kl_backward(const IndexerKlBackwardArgs& args, const Parallel&) {
  run<IndexerKlBackwardArgs>(
      args,
      [&] {
        check_attention(args.in.shape, args.in.sequences);
        check_indexer(args.in.indexer, args.in.sequences);
      },
      [](const IndexerKlBackwardArgs& host, CudaCall& call) {
        const DType dtype = host.in.shape.dtype;
        const Indexer& indexer = host.in.indexer;
        const std::int64_t queries = host.in.sequences.total_queries(), keys = host.in.sequences.total_keys();
        IndexerKlBackwardArgs there = host;
        there.in = mirror(host.in, call);
        there.index_lse = reals(host.index_lse, queries, dtype, call);
        there.weight = reals(host.weight, queries, dtype, call);
        there.dq = call.rows(host.dq, queries, indexer.heads, indexer.head_size, dtype);
        there.dw = call.rows(host.dw, queries, indexer.heads, 1, dtype);
        there.dk = reals(host.dk, keys * indexer.head_size, dtype, call);
        there.dbias = reals(host.dbias, indexer.heads, dtype, call);
        return there;
      },
      [](const IndexerKlBackwardArgs& there, const cuda::Context& context) {
        kl_limits == nullptr ? cuda::indexer_kl_backward(there, context)
                             : cuda::indexer_kl_backward_in_chunks(there, *kl_limits, context);
      });
}

// ---- the operators of fused_backend.h: tensors without gaps

namespace {

const void* elements(const void* host, std::int64_t count, DType type, CudaCall& call) {
  return call.input(host, count * static_cast<std::int64_t>(size_of(type)));
}
void* elements(void* host, std::int64_t count, DType type, CudaCall& call) {
  return call.output(host, count * static_cast<std::int64_t>(size_of(type)));
}

// Sizes that a test would really allocate: what lies beyond goes to the operator as it is.
void check_size(std::int64_t size) { check::in_range("", "", size, 0, 1 << 24); }

void check_rotary_sizes(const RotaryShape& shape) {
  for (const std::int64_t size : {shape.tokens, shape.q_heads, shape.k_heads, shape.v_heads, shape.head_size})
    check_size(size);
  check::in_range("", "", shape.pairs, 0, shape.head_size / 2);
}

}  // namespace

void rms_norm(const RmsNormArgs& args, const Parallel&) {
  run<RmsNormArgs>(
      args,
      [&] {
        check_size(args.shape.tokens);
        check_size(args.shape.size);
      },
      [](const RmsNormArgs& host, CudaCall& call) {
        RmsNormArgs there = host;
        const auto& [dtype, tokens, size, eps] = host.shape;
        there.y = elements(host.y, tokens * size, dtype, call);
        there.sum = elements(host.sum, tokens * size, dtype, call);
        there.rstd = reals(host.rstd, tokens, dtype, call);
        there.x = elements(host.x, tokens * size, dtype, call);
        there.branch = elements(host.branch, tokens * size, dtype, call);
        there.weight = elements(host.weight, size, dtype, call);
        return there;
      },
      &cuda::rms_norm);
}

void rms_norm_backward(const RmsNormBackwardArgs& args, const Parallel&) {
  run<RmsNormBackwardArgs>(
      args,
      [&] {
        check_size(args.shape.tokens);
        check_size(args.shape.size);
      },
      [](const RmsNormBackwardArgs& host, CudaCall& call) {
        RmsNormBackwardArgs there = host;
        const auto& [dtype, tokens, size, eps] = host.shape;
        there.dx = elements(host.dx, tokens * size, dtype, call);
        there.dweight = reals(host.dweight, size, dtype, call);
        there.dy = elements(host.dy, tokens * size, dtype, call);
        there.dsum = elements(host.dsum, tokens * size, dtype, call);
        there.sum = elements(host.sum, tokens * size, dtype, call);
        there.weight = elements(host.weight, size, dtype, call);
        there.rstd = reals(host.rstd, tokens, dtype, call);
        return there;
      },
      &cuda::rms_norm_backward);
}

void rotary(const RotaryArgs& args, const Parallel&) {
  run<RotaryArgs>(
      args, [&] { check_rotary_sizes(args.shape); },
      [](const RotaryArgs& host, CudaCall& call) {
        RotaryArgs there = host;
        const RotaryShape& s = host.shape;
        const std::int64_t head = s.tokens * s.head_size;
        there.q = elements(host.q, head * s.q_heads, s.dtype, call);
        there.k = elements(host.k, head * s.k_heads, s.dtype, call);
        there.v = elements(host.v, head * s.v_heads, s.dtype, call);
        there.x = elements(host.x, head * (s.q_heads + s.k_heads + s.v_heads), s.dtype, call);
        there.cos = reals(host.cos, s.tokens * s.pairs, s.dtype, call);
        there.sin = reals(host.sin, s.tokens * s.pairs, s.dtype, call);
        return there;
      },
      &cuda::rotary);
}

void rotary_backward(const RotaryBackwardArgs& args, const Parallel&) {
  run<RotaryBackwardArgs>(
      args, [&] { check_rotary_sizes(args.shape); },
      [](const RotaryBackwardArgs& host, CudaCall& call) {
        RotaryBackwardArgs there = host;
        const RotaryShape& s = host.shape;
        const std::int64_t head = s.tokens * s.head_size;
        there.dx = elements(host.dx, head * (s.q_heads + s.k_heads + s.v_heads), s.dtype, call);
        there.dq = elements(host.dq, head * s.q_heads, s.dtype, call);
        there.dk = elements(host.dk, head * s.k_heads, s.dtype, call);
        there.dv = elements(host.dv, head * s.v_heads, s.dtype, call);
        there.cos = reals(host.cos, s.tokens * s.pairs, s.dtype, call);
        there.sin = reals(host.sin, s.tokens * s.pairs, s.dtype, call);
        return there;
      },
      &cuda::rotary_backward);
}

void swiglu(const SwigluArgs& args, const Parallel&) {
  run<SwigluArgs>(
      args,
      [&] {
        check_size(args.shape.tokens);
        check_size(args.shape.size);
      },
      [](const SwigluArgs& host, CudaCall& call) {
        SwigluArgs there = host;
        const auto& [dtype, tokens, size] = host.shape;
        there.y = elements(host.y, tokens * size, dtype, call);
        there.x = elements(host.x, tokens * 2 * size, dtype, call);
        return there;
      },
      &cuda::swiglu);
}

void swiglu_backward(const SwigluBackwardArgs& args, const Parallel&) {
  run<SwigluBackwardArgs>(
      args,
      [&] {
        check_size(args.shape.tokens);
        check_size(args.shape.size);
      },
      [](const SwigluBackwardArgs& host, CudaCall& call) {
        SwigluBackwardArgs there = host;
        const auto& [dtype, tokens, size] = host.shape;
        there.dx = elements(host.dx, tokens * 2 * size, dtype, call);
        there.x = elements(host.x, tokens * 2 * size, dtype, call);
        there.dy = elements(host.dy, tokens * size, dtype, call);
        return there;
      },
      &cuda::swiglu_backward);
}

void cross_entropy(const CrossEntropyArgs& args, const Parallel&) {
  run<CrossEntropyArgs>(
      args,
      [&] {
        check_size(args.tokens);
        check_size(args.classes);
      },
      [](const CrossEntropyArgs& host, CudaCall& call) {
        CrossEntropyArgs there = host;
        there.logits = elements(host.logits, host.tokens * host.classes, host.dtype, call);
        there.targets = call.array(host.targets, host.tokens);
        there.loss = reals(host.loss, host.tokens, host.dtype, call);
        return there;
      },
      &cuda::cross_entropy);
}

void adamw(const AdamWArgs& args, const Parallel&) {
  run<AdamWArgs>(
      args, [&] { check_size(args.count); },
      [](const AdamWArgs& host, CudaCall& call) {
        AdamWArgs there = host;
        there.master = call.array(host.master, host.count);
        there.mean = call.array(host.mean, host.count);
        there.square = call.array(host.square, host.count);
        there.weight = elements(host.weight, host.count, host.weight_type, call);
        there.gradient = elements(host.gradient, host.count, host.gradient_type, call);
        return there;
      },
      &cuda::adamw);
}

}  // namespace gsa::testing::backend
