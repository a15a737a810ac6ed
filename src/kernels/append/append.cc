// append on the CPU. The work is in append_cpu.cc.
#include "kernels/append/append.h"

#include "kernels/append/append_checks.h"
#include "kernels/append/append_cpu.h"

namespace gsa {

void append(const AppendArgs& args, const Parallel& parallel) {
  if (!check_append(args)) return;
  for (std::int64_t t = 0; t < args.tokens; ++t) {
    check::in_range("append", "slots", args.slots[t], 0, args.rows - 1);
  }
  append_cpu(args, parallel);
}

}  // namespace gsa
