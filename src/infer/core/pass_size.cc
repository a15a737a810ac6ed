#include "infer/core/pass_size.h"

#include <algorithm>

#include "gsa/tensor_view.h"

namespace gsa::infer {
namespace {

constexpr std::int64_t kSelectionBytes = std::int64_t{256} << 20, kMinQueriesGpu = 16384;

}  // namespace

std::int64_t tokens_of_a_pass(const nn::ModelConfig& config, const PassFacts& facts) {
  if (!facts.selects || config.indexers() == config.layers) return facts.chunk;
  const std::int64_t bytes =  // of a query
      4 * (facts.gpu ? mask_words(facts.longest) : std::min(facts.longest, config.attention.budget.max));
  return std::min(facts.chunk, std::max(kSelectionBytes / bytes, facts.gpu ? kMinQueriesGpu : 1));
}

}  // namespace gsa::infer
