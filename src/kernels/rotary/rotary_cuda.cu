// rotary on CUDA devices: bound by memory. A unit of work is a vector of x1 with the vector of x2 that is
// rotated with it, or a vector that is copied; a token's units lie side by side.
#include "kernels/rotary/rotary_cuda.h"

#include "kernels/common/cuda_check.h"
#include "kernels/common/vec.cuh"
#include "kernels/rotary/rotary_checks.h"

namespace gsa::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T>
struct Parts {
  T* joint;
  T *q, *k, *v;
  const float *cos, *sin;
};

struct Units {
  std::int64_t all;     // of all tokens
  unsigned token;       // of a token
  unsigned rotating;    // of its heads of q and k
  unsigned head;        // of one head of q or k: pairs first, then the rest
  unsigned pair_units;  // of these, how many are rotated
  unsigned plain_head;  // of one head of v
  unsigned q_heads, k_heads, v_heads;
  unsigned head_size, pairs;
};

// Forward: from the joint row to q, k, v. Otherwise back, rotating the other way.
template <typename T, int width, bool forward>
__global__ __launch_bounds__(kThreads) void rotary_kernel(Units units, Parts<T> parts) {
  const std::int64_t unit = std::int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (unit >= units.all) return;
  const std::int64_t token = unit / units.token;
  const unsigned place = static_cast<unsigned>(unit - token * units.token);
  const bool plain = place >= units.rotating;

  const unsigned within = plain ? place - units.rotating : place;
  const unsigned per_head = plain ? units.plain_head : units.head;
  const unsigned head = within / per_head, vec = within - head * per_head;
  const unsigned joint_head = plain ? units.q_heads + units.k_heads + head : head;
  const unsigned heads = units.q_heads + units.k_heads + units.v_heads;
  T* const joint = parts.joint + (token * heads + joint_head) * units.head_size;
  T* const part = plain ? parts.v + (token * units.v_heads + head) * units.head_size
                  : head < units.q_heads
                      ? parts.q + (token * units.q_heads + head) * units.head_size
                      : parts.k + (token * units.k_heads + head - units.q_heads) * units.head_size;
  const T* const from = forward ? joint : part;
  T* const to = forward ? part : joint;

  if (plain || vec >= units.pair_units) {
    const unsigned column = plain ? vec * width : 2 * units.pairs + (vec - units.pair_units) * width;
    store_vec<T, width>(to + column, load_vec<T, width>(from + column));
    return;
  }
  const unsigned column = vec * width;
  auto a = load_vec<T, width>(from + column);
  auto b = load_vec<T, width>(from + units.pairs + column);
  const float* const cos = parts.cos + token * units.pairs + column;
  const float* const sin = parts.sin + token * units.pairs + column;
#pragma unroll
  for (int i = 0; i < width; ++i) {
    const float c = __ldg(cos + i), s = forward ? __ldg(sin + i) : -__ldg(sin + i);
    const float first = to_float(a.value[i]), second = to_float(b.value[i]);
    a.value[i] = from_float<T>(first * c - second * s);
    b.value[i] = from_float<T>(second * c + first * s);
  }
  store_vec<T, width>(to + column, a);
  store_vec<T, width>(to + units.pairs + column, b);
}

Units units_of(const RotaryShape& shape, int width) {
  const auto narrow = [](std::int64_t value) { return static_cast<unsigned>(value); };
  const std::int64_t rest = shape.head_size - 2 * shape.pairs;
  Units units;
  units.pair_units = narrow(shape.pairs / width);
  units.head = narrow(shape.pairs / width + rest / width);
  units.plain_head = narrow(shape.head_size / width);
  units.rotating = narrow(shape.q_heads + shape.k_heads) * units.head;
  units.token = units.rotating + narrow(shape.v_heads) * units.plain_head;
  units.all = shape.tokens * units.token;
  units.q_heads = narrow(shape.q_heads);
  units.k_heads = narrow(shape.k_heads);
  units.v_heads = narrow(shape.v_heads);
  units.head_size = narrow(shape.head_size);
  units.pairs = narrow(shape.pairs);
  return units;
}

struct Memory {
  void *joint, *q, *k, *v;
  const void *cos, *sin;
};

template <bool forward>
void launch(const char* op, const RotaryShape& shape, const Memory& memory, const Context& context) {
  with_vec(op, shape.dtype, {shape.head_size, shape.pairs}, {memory.joint, memory.q, memory.k, memory.v},
           [&]<typename T, int width>() {
             const Units units = units_of(shape, width);
             const Parts<T> parts = {static_cast<T*>(memory.joint),
                                     static_cast<T*>(memory.q),
                                     static_cast<T*>(memory.k),
                                     static_cast<T*>(memory.v),
                                     static_cast<const float*>(memory.cos),
                                     static_cast<const float*>(memory.sin)};
             rotary_kernel<T, width, forward>
                 <<<blocks_for(op, units.all, kThreads), kThreads, 0, stream_of(context.stream)>>>(units,
                                                                                                   parts);
             check_launch(op);
           });
}

// The kernel reads what is const here: one type of pointer serves both directions.
void* both_ways(const void* pointer) { return const_cast<void*>(pointer); }

}  // namespace

void rotary(const RotaryArgs& args, const Context& context) {
  constexpr const char* kOp = "rotary";
  check_device(kOp, context.device);
  if (!check_rotary(args)) return;
  launch<true>(kOp, args.shape, {both_ways(args.x), args.q, args.k, args.v, args.cos, args.sin}, context);
}

void rotary_backward(const RotaryBackwardArgs& args, const Context& context) {
  constexpr const char* kOp = "rotary_backward";
  check_device(kOp, context.device);
  if (!check_rotary_backward(args)) return;
  launch<false>(kOp, args.shape,
                {args.dx, both_ways(args.dq), both_ways(args.dk), both_ways(args.dv), args.cos, args.sin},
                context);
}

}  // namespace gsa::cuda
