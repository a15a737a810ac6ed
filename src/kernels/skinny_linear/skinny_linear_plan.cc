#include "kernels/skinny_linear/skinny_linear_plan.h"

#include <algorithm>

#include "gsa/error.h"

namespace gsa::cuda {

SkinnyLinearConfig choose_skinny_linear(const SkinnyLinearFacts& facts) {
  // One block a multiprocessor, and no more than have half a tile of outputs each.
  const std::int64_t blocks = std::min<std::int64_t>(
      facts.device.multiprocessors, std::max<std::int64_t>(1, facts.outputs / (skinny::kTile / 2)));
  const int columns = skinny::columns_for(facts.rows);
  return {.columns = columns,
          .blocks = static_cast<int>(blocks),
          .layout = skinny::Layout(facts.rows, facts.size, facts.normed),
          .why = columns == 8 ? "up to 8 rows" : "9 to 16 rows"};
}

std::string to_string(const SkinnyLinearConfig& config) {
  return concat(config.columns, " columns, ", config.blocks, " blocks, ", config.layout.bytes / 1024,
                " KB: ", config.why);
}

}  // namespace gsa::cuda
