// The kernel of attend forward on Hopper. hopper/forward.cu launches it; one file for each storage
// type compiles its forms.
//
// A block of threads takes a tile of queries and one key/value head. The rows of the tile (query r / G, head
// r % G of the group) are spread over one or two warpgroups of 64 rows, the consumers, which hold Q in
// registers; one more warpgroup, the producer, copies rows of K and V, 64 keys at a time, into rings in
// shared memory. While one consumer of a multiprocessor is at its softmax, the other has the tensor cores.
#pragma once

#include "kernels/attend/hopper/forward_consumer.cuh"
#include "kernels/attend/hopper/forward_producer.cuh"
#include "kernels/common/cuda_check.h"

namespace gsa::cuda::forward {

// consumers: warpgroups that share the copied keys. fallback: the non-finite slow path, which keeps such
// values out of the products; takes the noted parts of tiles, one consumer each.
template <typename T, int head_size, int consumers, bool dense, bool fallback>
__global__ __launch_bounds__(128 * (consumers + 1), consumers == 1 && !fallback ? 2 : 1) void attend_kernel(
    const __grid_constant__ Params p) {
#ifdef GSA_HOPPER_CODE
  constexpr int kMatrixRows = 64 * consumers;
  using Memory = Shared<head_size, kMatrixRows>;
  constexpr AttendStages kStages = Memory::kStages;
  extern __shared__ __align__(1024) char raw[];
  Memory& memory = *reinterpret_cast<Memory*>(raw);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages.k; ++i) {
      hopper::barrier_init(shared_address(&memory.k_full[i]), kTeam);
      hopper::barrier_init(shared_address(&memory.k_empty[i]), 4 * consumers);
    }
    for (int i = 0; i < kStages.v; ++i) {
      hopper::barrier_init(shared_address(&memory.v_full[i]), kTeam);
      hopper::barrier_init(shared_address(&memory.v_empty[i]), 4 * consumers);
    }
    hopper::barrier_init_fence();
  }
  __syncthreads();

  const int items = fallback ? *p.list_size : p.items;
  const int first = static_cast<int>(blockIdx.x), step = static_cast<int>(gridDim.x);
  const auto for_items = [&](const auto& run) {
    for (int i = first; i < items; i += step) {
      const int entry = fallback ? p.list[i] : i;
      const int index = fallback ? entry / p.parts : entry;
      const Item item = find_item<dense>(p, index);
      if (item.queries > 0) run(item, index, fallback ? entry % p.parts : 0);
    }
  };
  if (threadIdx.x < kProducers) {
    if constexpr (!fallback) hopper::give_registers<consumers == 1 ? 48 : 56>();
    if (threadIdx.x < kTeam) {
      Producer<T, head_size, kStages.k, dense, fallback> producer(p, p.k, memory.k[0], memory.k_full,
                                                                  memory.k_empty, nullptr);
      for_items([&](const Item& item, int, int) { producer.run(item); });
    } else {
      Producer<T, head_size, kStages.v, dense, fallback> producer(p, p.v, memory.v[0], memory.v_full,
                                                                  memory.v_empty, memory.nonfinite);
      for_items([&](const Item& item, int, int) { producer.run(item); });
    }
    cp_async_wait<0>();
  } else {
    if constexpr (!fallback) hopper::take_registers<consumers == 1 ? 208 : 224>();
    Consumer<T, head_size, kMatrixRows, dense, fallback> consumer(p, memory);
    const int own = static_cast<int>(threadIdx.x / 128) - 1;
    for_items([&](const Item& item, int index, int part) { consumer.run(item, index, part + own); });
  }
#endif
}

template <typename T, int head_size, int consumers, bool dense, bool fallback>
void launch_form(const Params& params, int blocks, cudaStream_t stream) {
  constexpr std::size_t kShared = sizeof(Shared<head_size, 64 * consumers>);
  static_assert(kShared == attend_shared_memory(head_size, 64 * consumers));
  const auto kernel = attend_kernel<T, head_size, consumers, dense, fallback>;
  allow_shared_memory(kernel, kShared, "attend");
  kernel<<<static_cast<unsigned>(blocks), 128 * (consumers + 1), kShared, stream>>>(params);
  check_launch("attend");
}

// All tiles, then the fallback for those that need it.
template <typename T, int head_size, bool dense>
void launch_size(const Params& params, const AttendConfig& config, int multiprocessors, cudaStream_t stream) {
  if (config.rows == 64) {
    if constexpr (dense) {
      throw Error("gsa: attend: no dense form of 64 rows");
    } else {
      launch_form<T, head_size, 1, dense, false>(params, params.items, stream);
    }
  } else {
    launch_form<T, head_size, 2, dense, false>(params, params.items, stream);
  }
  launch_form<T, head_size, 1, dense, true>(params, 2 * multiprocessors, stream);
}

template <typename T>
void launch_type(const Params& params, const AttendConfig& config, int head_size, bool dense,
                 int multiprocessors, cudaStream_t stream) {
  if (head_size == 128) {
    if (dense) {
      launch_size<T, 128, true>(params, config, multiprocessors, stream);
    } else {
      launch_size<T, 128, false>(params, config, multiprocessors, stream);
    }
  } else {
    if (dense) {
      launch_size<T, 64, true>(params, config, multiprocessors, stream);
    } else {
      launch_size<T, 64, false>(params, config, multiprocessors, stream);
    }
  }
}

// One file each.
void launch_bf16(const Params& params, const AttendConfig& config, int head_size, bool dense,
                 int multiprocessors, cudaStream_t stream);
void launch_f16(const Params& params, const AttendConfig& config, int head_size, bool dense,
                int multiprocessors, cudaStream_t stream);

}  // namespace gsa::cuda::forward
