// Instruction sets that kernels are compiled for: AVX-512, AVX2 and SSE4 on x86-64, NEON on Arm; the one in
// use is chosen at run time. Scalable vectors (SVE) are left out: tiles keep arrays of vectors, which need a
// size. Include before hwy/foreach_target.h.
#pragma once

#if defined(__x86_64__)
#define HWY_BASELINE_TARGETS HWY_SSE4
#endif
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
