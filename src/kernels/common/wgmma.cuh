// Hopper's own instructions (sm_90a): matrix products of a warpgroup from shared memory, barriers in shared
// memory, register hand-over. Kernels that use them are compiled for sm_90a only: guard their bodies with
// GSA_HOPPER_CODE.
#pragma once

#include "kernels/common/barrier.cuh"
#include "kernels/common/mma.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define GSA_HOPPER_CODE 1
#endif

namespace gsa::cuda::hopper {

// ---- Tiles in shared memory, 128-byte swizzle
//
// A tile is stored in panels of 64 elements (128 bytes) of its contiguous dimension: panel p holds, row after
// row, elements 64 p .. 64 p + 63 of every row. Rows come in groups of eight (1024 bytes, aligned to 1024);
// the 16-byte chunk c of row r lies at chunk c ^ (r % 8).
__device__ __forceinline__ std::uint32_t swizzled(int row, int chunk) {
  return static_cast<std::uint32_t>(row * 128 + ((chunk ^ (row & 7)) << 4));
}

namespace detail {
constexpr std::uint64_t kSwizzle128 = std::uint64_t(1) << 62;
__device__ __forceinline__ std::uint64_t field(std::uint32_t bytes) { return (bytes & 0x3ffff) >> 4; }
}  // namespace detail

// Operand whose reduction dimension is the contiguous one (q and k of q k^T). address: the panel's first
// byte, plus 32 bytes for each step of 16 elements along the reduction; rows are all rows of the panel from
// there.
__device__ __forceinline__ std::uint64_t k_major(std::uint32_t address) {
  return detail::kSwizzle128 | (detail::field(1024) << 32) | (std::uint64_t(1) << 16) |
         detail::field(address);
}
// Operand whose other dimension is the contiguous one (v of p v). address: the first panel's first byte, plus
// 2048 bytes (16 rows) for each step of 16 along the reduction. panel_bytes: distance between panels.
__device__ __forceinline__ std::uint64_t mn_major(std::uint32_t address, std::uint32_t panel_bytes) {
  return detail::kSwizzle128 | (detail::field(1024) << 32) | (detail::field(panel_bytes) << 16) |
         detail::field(address);
}

// ---- wgmma. d [64, n] float: thread i of the warpgroup holds rows 16 (i/32) + (i%32)/4 and + 8; d[4 j + 0,
// 1] are columns 8 j + 2 (i%4) and + 1 of the upper row, d[4 j + 2, 3] of the lower one.

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int pending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}
// The compiler must not move reads or writes of accumulators across an asynchronous product.
template <int count>
__device__ __forceinline__ void keep(float (&d)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

enum class Major { k, mn };

// clang-format off
#define GSA_ACC4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define GSA_ACC16(d) GSA_ACC4(d, 0), GSA_ACC4(d, 4), GSA_ACC4(d, 8), GSA_ACC4(d, 12)
#define GSA_ACC32(d) GSA_ACC16(d), GSA_ACC4(d, 16), GSA_ACC4(d, 20), GSA_ACC4(d, 24), GSA_ACC4(d, 28)
#define GSA_ACC64(d) GSA_ACC32(d), GSA_ACC4(d, 32), GSA_ACC4(d, 36), GSA_ACC4(d, 40), GSA_ACC4(d, 44), GSA_ACC4(d, 48), GSA_ACC4(d, 52), GSA_ACC4(d, 56), GSA_ACC4(d, 60)
// d = a b, or d += a b where accumulate: one step of 16 along the reduction, a and b in shared memory.
template <typename T, int n, Major a_major, Major b_major>
__device__ __forceinline__ void wgmma(float (&d)[n / 2], std::uint64_t a, std::uint64_t b, int accumulate) {
  if constexpr (n == 32 && is_bf16<T>) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %18, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, %16, %17, p, 1, 1, %19, %20;}"
        : GSA_ACC16(d)
        : "l"(a), "l"(b), "r"(accumulate), "n"(a_major == Major::mn ? 1 : 0), "n"(b_major == Major::mn ? 1 : 0));
  } else if constexpr (n == 32 && !is_bf16<T>) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %18, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, %16, %17, p, 1, 1, %19, %20;}"
        : GSA_ACC16(d)
        : "l"(a), "l"(b), "r"(accumulate), "n"(a_major == Major::mn ? 1 : 0), "n"(b_major == Major::mn ? 1 : 0));
  } else if constexpr (n == 64 && is_bf16<T>) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, p, 1, 1, %35, %36;}"
        : GSA_ACC32(d)
        : "l"(a), "l"(b), "r"(accumulate), "n"(a_major == Major::mn ? 1 : 0), "n"(b_major == Major::mn ? 1 : 0));
  } else if constexpr (n == 64 && !is_bf16<T>) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, p, 1, 1, %35, %36;}"
        : GSA_ACC32(d)
        : "l"(a), "l"(b), "r"(accumulate), "n"(a_major == Major::mn ? 1 : 0), "n"(b_major == Major::mn ? 1 : 0));
  } else if constexpr (n == 128 && is_bf16<T>) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, %64, %65, p, 1, 1, %67, %68;}"
        : GSA_ACC64(d)
        : "l"(a), "l"(b), "r"(accumulate), "n"(a_major == Major::mn ? 1 : 0), "n"(b_major == Major::mn ? 1 : 0));
  } else if constexpr (n == 128 && !is_bf16<T>) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, %64, %65, p, 1, 1, %67, %68;}"
        : GSA_ACC64(d)
        : "l"(a), "l"(b), "r"(accumulate), "n"(a_major == Major::mn ? 1 : 0), "n"(b_major == Major::mn ? 1 : 0));
  } else {
    static_assert(n == 0, "wgmma: no wrapper for this n");
  }
}

// The same with a [64, 16] in registers, laid out as mma_16x8x16's: warp w of the group holds rows 16 w .. 16 w + 15.
template <typename T, int n, Major b_major>
__device__ __forceinline__ void wgmma(float (&d)[n / 2], const std::uint32_t (&a)[4], std::uint64_t b, int accumulate) {
  if constexpr (n == 32 && is_bf16<T>) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %21, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19}, %20, p, 1, 1, %22;}"
        : GSA_ACC16(d)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(b_major == Major::mn ? 1 : 0));
  } else if constexpr (n == 32 && !is_bf16<T>) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %21, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19}, %20, p, 1, 1, %22;}"
        : GSA_ACC16(d)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(b_major == Major::mn ? 1 : 0));
  } else if constexpr (n == 64 && is_bf16<T>) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, {%32, %33, %34, %35}, %36, p, 1, 1, %38;}"
        : GSA_ACC32(d)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(b_major == Major::mn ? 1 : 0));
  } else if constexpr (n == 64 && !is_bf16<T>) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, {%32, %33, %34, %35}, %36, p, 1, 1, %38;}"
        : GSA_ACC32(d)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(b_major == Major::mn ? 1 : 0));
  } else if constexpr (n == 128 && is_bf16<T>) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, {%64, %65, %66, %67}, %68, p, 1, 1, %70;}"
        : GSA_ACC64(d)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(b_major == Major::mn ? 1 : 0));
  } else if constexpr (n == 128 && !is_bf16<T>) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, {%64, %65, %66, %67}, %68, p, 1, 1, %70;}"
        : GSA_ACC64(d)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(b_major == Major::mn ? 1 : 0));
  } else {
    static_assert(n == 0, "wgmma: no wrapper for this n");
  }
}

#undef GSA_ACC4
#undef GSA_ACC16
#undef GSA_ACC32
#undef GSA_ACC64
// clang-format on

// ---- Ordering

// Shared memory written by ordinary stores or cp.async becomes visible to wgmma: in each writing thread,
// before the barrier that hands it over.
__device__ __forceinline__ void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

using cuda::barrier_arrive;
using cuda::barrier_arrive_after_copies;
using cuda::barrier_init;
using cuda::barrier_init_fence;
using cuda::barrier_wait;
using cuda::named_barrier;

// Registers a warpgroup gives away or takes; each role is one branch of one if/else, and the kernel has
// __launch_bounds__(threads, 1).
template <int count>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}
template <int count>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}

}  // namespace gsa::cuda::hopper
