#include "machine.h"

#include <ATen/Version.h>
#include <malloc.h>
#include <torch/version.h>

#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "core/machine.h"
#include "kernels/common/simd.h"

namespace gsa::bench {

namespace {

constexpr std::int64_t kLargeBytes = std::int64_t{512} << 20;  // far more than a last-level cache

// Virtual machines often hide the product's number; family and model still tell.
std::string cpu_name() {
  const auto info = [](const char* key) { return field_of("/proc/cpuinfo", key); };
  const std::string name = info("model name");
  if (name.empty()) return "unknown CPU";
  return name + " (family " + info("cpu family") + ", model " + info("model") + ")";
}

double gemm_rate(at::ScalarType type) {
  constexpr std::int64_t n = 2048;
  const at::Tensor a = at::rand({n, n}, at::kFloat).to(type), b = at::rand({n, n}, at::kFloat).to(type);
  at::Tensor c = at::mm(a, b);
  const Samples samples = measure([&] { at::mm_out(c, a, b); });
  return 2.0 * n * n * n / samples.fastest();
}

double sigmoid_rate() {
  constexpr std::int64_t n = 1 << 18;
  constexpr int times = 64;
  const at::Tensor x = at::randn({n}, at::kFloat);
  at::Tensor y = at::sigmoid(x);
  const Samples samples = measure([&] {
    for (int i = 0; i < times; ++i) at::sigmoid_out(y, x);
  });
  return static_cast<double>(n) * times / samples.fastest();
}

double read_rate() {
  const at::Tensor x = at::ones({kLargeBytes / 4}, at::kFloat);
  at::sum(x);
  const Samples samples = measure([&] { at::sum(x); });
  return static_cast<double>(kLargeBytes) / samples.fastest();
}

}  // namespace

Machine measure_machine(Progress& progress) {
  const at::NoGradGuard no_grad;
  progress.start("machine");
  Machine machine{.cpu = cpu_name(),
                  .cores = static_cast<int>(std::thread::hardware_concurrency()),
                  .threads = at::get_num_threads(),
                  .simd = simd_in_use(),
                  .torch_simd = at::get_cpu_capability(),
                  .torch_version = TORCH_VERSION};
  progress.step("matrix products");
  machine.gemm_fp32 = gemm_rate(at::kFloat);
  machine.gemm_bf16 = gemm_rate(at::kBFloat16);
  progress.step("sigmoids");
  machine.sigmoids = sigmoid_rate();
  progress.step("memory");
  machine.read_bytes = read_rate();
  return machine;
}

CacheFlusher::CacheFlusher() : memory_(at::ones({kLargeBytes / 2 / 4}, at::kFloat)) {}

void CacheFlusher::operator()() const { at::sum(memory_); }

std::int64_t peak_memory() {
  std::istringstream value(field_of("/proc/self/status", "VmHWM"));
  std::int64_t kilobytes = 0;
  if (!(value >> kilobytes)) throw std::runtime_error("/proc/self/status has no VmHWM");
  return kilobytes * 1024;
}

bool reset_peak_memory() {
  malloc_trim(0);
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;
  return file.good();
}

}  // namespace gsa::bench
