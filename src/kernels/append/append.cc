// append on the CPU. The work is in append_cpu.cc.
#include "kernels/append/append.h"

#include "gsa/error.h"
#include "kernels/append/append_checks.h"
#include "kernels/append/append_cpu.h"
#include "kernels/common/plans.h"

namespace gsa {
namespace {

std::string append_index_text(const AppendArgs& args) {
  if (args.index_heads == 0) return {};
  return concat(", indexer ", args.index_heads, " heads of ", args.index_head_size,
                args.index_scale != nullptr ? ", keys of 8 bits" : "");
}

}  // namespace

void append(const AppendArgs& args, const Parallel& parallel) {
  if (!check_append(args)) return;
  for (std::int64_t t = 0; t < args.tokens; ++t) {
    check::in_range("append", "slots", args.slots[t], 0, args.rows - 1);
  }
  if (prints_plans()) {
    print_cpu_plan("append", concat(args.tokens, " tokens, ", args.q_heads, "/", args.kv_heads, " heads of ",
                                    args.head_size, append_index_text(args), ", ", name_of(args.dtype)));
  }
  append_cpu(args, parallel);
}

}  // namespace gsa
