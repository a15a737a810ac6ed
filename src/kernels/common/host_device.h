// Functions that both the host and kernels call.
#pragma once

#ifdef __CUDACC__
#define GSA_DEVICE __host__ __device__ __forceinline__
#else
#define GSA_DEVICE inline
#endif
