// The machine as this process sees it: what it is called and what it does in a second.
#pragma once

#include <cstdint>
#include <string>

#include "nn/torch.h"
#include "progress.h"

namespace gsa::bench {

struct Machine {
  std::string cpu;
  int cores = 0;
  int threads = 0;
  std::string simd;        // that our kernels run on
  std::string torch_simd;  // that torch's run on
  std::string torch_version;

  // A second, on all threads: the best of several runs, because a floor is made of them.
  double gemm_fp32 = 0;  // FLOPs of at::mm, 2048 x 2048 x 2048
  double gemm_bf16 = 0;
  double sigmoids = 0;    // at::sigmoid in fp32, operands in cache
  double read_bytes = 0;  // at::sum over 512 MiB
};

Machine measure_machine(Progress& progress);

// Pushes what caches hold out of them, with all threads, by reading memory of its own.
class CacheFlusher {
 public:
  CacheFlusher();
  void operator()() const;

 private:
  at::Tensor memory_;
};

// The most memory that the process ever held at a time (VmHWM), in bytes.
std::int64_t peak_memory();

// Starts peak_memory() again from what the process holds now. False where the kernel does not allow it: then
// the peak is that of the whole run.
bool reset_peak_memory();

}  // namespace gsa::bench
