#include "torch/threads.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <thread>

#include "gsa/error.h"

namespace gsa::binding {

std::string use_threads(std::int64_t wanted) {
  if (wanted <= 0) return "";
  const auto cores = static_cast<std::int64_t>(std::max(1u, std::thread::hardware_concurrency()));
  at::set_num_threads(static_cast<int>(std::min(wanted, cores)));
  if (wanted <= cores) return "";
  return concat("of ", wanted, " threads asked for, ", cores, cores == 1 ? " is" : " are",
                " used: one for each core there is");
}

}  // namespace gsa::binding
