// adamw on CUDA devices: bound by memory, four elements a thread.
#include "kernels/adamw/adamw_cuda.h"

#include "kernels/common/cuda_check.h"
#include "kernels/common/vec.cuh"

namespace gsa::cuda {
namespace {

constexpr int kThreads = 256;

template <typename G, typename W, int width>
__global__ __launch_bounds__(kThreads) void adamw_kernel(std::int64_t vecs, AdamWNumbers n,
                                                         const G* __restrict__ gradient,
                                                         float* __restrict__ master, float* __restrict__ mean,
                                                         float* __restrict__ square, W* weight) {
  const std::int64_t vec = std::int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (vec >= vecs) return;
  const std::int64_t at = vec * width;
  const auto g = load_vec<G, width>(gradient + at);
  auto w = load_vec<float, width>(master + at);
  auto m = load_vec<float, width>(mean + at);
  auto v = load_vec<float, width>(square + at);
  Vec<W, width> rounded;
#pragma unroll
  for (int i = 0; i < width; ++i) {
    const float back = n.factor * to_float(g.value[i]);
    m.value[i] = n.beta1 * m.value[i] + n.rest1 * back;
    v.value[i] = n.beta2 * v.value[i] + n.rest2 * (back * back);
    w.value[i] = n.keep * w.value[i] - n.step_size * m.value[i] / (sqrtf(v.value[i]) * n.root + n.eps);
    rounded.value[i] = from_float<W>(w.value[i]);
  }
  store_vec<float, width>(master + at, w);
  store_vec<float, width>(mean + at, m);
  store_vec<float, width>(square + at, v);
  if (weight != nullptr) store_vec<W, width>(weight + at, rounded);
}

template <typename Body>
void with_type(const char* argument, DType dtype, const Body& body) {
  if (with_element(dtype, body)) return;
  bad_argument("adamw_", argument, "float32, bfloat16 or float16", name_of(dtype));
}

}  // namespace

void adamw(const AdamWArgs& args, const Context& context) {
  constexpr const char* kOp = "adamw";
  check_device(kOp, context.device);
  if (!check_adamw(args)) return;
  const AdamWNumbers numbers = adamw_numbers(args);
  // Four elements of every tensor, whatever its type: 16 bytes of those in float32.
  const VecConfig vec =
      choose_vec(DType::f32, {args.count}, {args.gradient, args.master, args.mean, args.square, args.weight});
  if (prints_plans()) print_vec_plan(kOp, DType::f32, {args.count}, vec);
  with_type("gradient", args.gradient_type, [&]<typename G>(G) {
    with_type("weight", args.weight_type, [&]<typename W>(W) {
      const auto launch = [&]<int width>(std::integral_constant<int, width>) {
        const std::int64_t vecs = args.count / width;
        adamw_kernel<G, W, width>
            <<<blocks_for(kOp, vecs, kThreads), kThreads, 0, stream_of(context.stream)>>>(
                vecs, numbers, static_cast<const G*>(args.gradient), args.master, args.mean, args.square,
                static_cast<W*>(args.weight));
        check_launch(kOp);
      };
      vec.width == 4 ? launch(std::integral_constant<int, 4>()) : launch(std::integral_constant<int, 1>());
    });
  });
}

}  // namespace gsa::cuda
