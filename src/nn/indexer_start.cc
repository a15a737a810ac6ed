#include "nn/indexer_start.h"

#include <cmath>

#include "nn/rope.h"

namespace gsa::nn {
namespace {

using at::Tensor;

// Index of the frequency nearest to w, on a logarithmic scale, among those that are free; ties go to the
// lower index, that is the higher frequency.
std::size_t nearest(const std::vector<double>& frequencies, const std::vector<bool>& taken, double w) {
  std::size_t best = frequencies.size();
  double distance = 0;
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    if (taken[i]) continue;
    const double d = std::abs(std::log(frequencies[i] / w));
    if (best == frequencies.size() || d < distance) {
      best = i;
      distance = d;
    }
  }
  return best;
}

// [heads * size, d_model] -> the mean over heads [first, last), [size, d_model].
Tensor mean_of_heads(const Tensor& weight, std::int64_t size, std::int64_t first, std::int64_t last) {
  return weight.reshape({-1, size, weight.size(1)}).slice(0, first, last).mean(0);
}

}  // namespace

std::vector<std::int64_t> dimensions_from_attention(const AttentionConfig& config) {
  const Rope attention(config.head_size, config.rope, false);
  const Rope indexer(config.indexer_rope_size(), config.rope, false);
  const std::vector<double>&theirs = attention.frequencies(), &ours = indexer.frequencies();
  std::vector<std::int64_t> from(static_cast<std::size_t>(config.indexer.head_size), -1);
  std::vector<bool> taken(theirs.size(), false), filled(ours.size(), false);
  const auto join = [&](std::size_t our, std::size_t their) {
    taken[their] = filled[our] = true;
    from[our] = static_cast<std::int64_t>(their);
    from[our + ours.size()] = static_cast<std::int64_t>(their + theirs.size());
  };
  if (ours.size() <= theirs.size()) {
    for (std::size_t i = 0; i < ours.size(); ++i) join(i, nearest(theirs, taken, ours[i]));
  } else {
    for (std::size_t i = 0; i < theirs.size(); ++i) join(nearest(ours, filled, theirs[i]), i);
  }
  std::size_t next = 2 * ours.size();
  for (std::size_t pair = theirs.size(); pair-- > 0 && next < from.size();) {
    if (taken[pair]) continue;
    from[next++] = static_cast<std::int64_t>(pair);
    if (next < from.size()) from[next++] = static_cast<std::int64_t>(pair + theirs.size());
  }
  return from;
}

void start_from_attention(const AttentionConfig& config, const Tensor& q_proj, const Tensor& k_proj,
                          Tensor wq, Tensor wk) {
  const torch::NoGradGuard no_grad;
  const std::vector<std::int64_t> from = dimensions_from_attention(config);
  std::vector<std::int64_t> to, source;
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (from[i] < 0) continue;
    to.push_back(static_cast<std::int64_t>(i));
    source.push_back(from[i]);
  }
  const auto indices = [&](const std::vector<std::int64_t>& list) {
    return torch::tensor(list, torch::kInt64).to(wq.device());
  };
  const Tensor rows = indices(to), taken = indices(source);
  const std::int64_t size = config.indexer.head_size, index_heads = config.indexer.heads;
  wk.index_copy_(0, rows, mean_of_heads(k_proj, config.head_size, 0, config.kv_heads).index_select(0, taken));
  const Tensor queries = wq.view({index_heads, size, wq.size(1)});
  for (std::int64_t j = 0; j < index_heads; ++j) {
    const bool fewer = index_heads <= config.heads;
    const std::int64_t first = fewer ? j * config.heads / index_heads : j % config.heads;
    const std::int64_t last = fewer ? (j + 1) * config.heads / index_heads : first + 1;
    queries[j].index_copy_(0, rows,
                           mean_of_heads(q_proj, config.head_size, first, last).index_select(0, taken));
  }
}

}  // namespace gsa::nn
