#include "infer/reserved_zeros.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <cstddef>
#include <functional>
#include <numeric>

namespace gsa::infer {

std::optional<at::Tensor> reserved_zeros(const std::vector<std::int64_t>& sizes, at::ScalarType dtype) {
  rlimit space{};
  if (getrlimit(RLIMIT_AS, &space) != 0 || space.rlim_cur != RLIM_INFINITY) return std::nullopt;
  const std::int64_t count =
      std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
  const std::size_t bytes = static_cast<std::size_t>(count) * c10::elementSize(dtype);
  void* begin =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (begin == MAP_FAILED) return std::nullopt;
  return torch::from_blob(
      begin, sizes, [bytes](void* data) { munmap(data, bytes); }, torch::dtype(dtype));
}

}  // namespace gsa::infer
