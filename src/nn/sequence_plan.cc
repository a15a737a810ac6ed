#include "nn/sequence_plan.h"

#include <algorithm>
#include <string>

#include "gsa/error.h"
#include "nn/shape_of.h"
#include "nn/to_device.h"

namespace gsa::nn {
namespace {

using at::Tensor;

constexpr const char* kPlanOp = "nn::GatedSparseAttention";

Tensor cpu_tensor(const std::vector<std::int64_t>& values) {
  return torch::tensor(at::ArrayRef<std::int64_t>(values), torch::kInt64);
}

// Everything inside a layer is packed; a batch is the case of equal lengths.
std::vector<std::int64_t> sequence_starts(at::IntArrayRef leading, const std::optional<Tensor>& cu_seqlens) {
  std::vector<std::int64_t> starts;
  if (!cu_seqlens) {
    for (std::int64_t n = 0; n <= leading[0]; ++n) starts.push_back(n * leading[1]);
    return starts;
  }
  if (cu_seqlens->dim() != 1 || cu_seqlens->numel() == 0 || cu_seqlens->scalar_type() != torch::kInt64 ||
      !cu_seqlens->device().is_cpu()) {
    bad_argument(kPlanOp, "cu_seqlens", "int64 [sequences + 1] on the CPU",
                 concat(shape_of(*cu_seqlens), " on ", cu_seqlens->device()));
  }
  const auto values = cu_seqlens->accessor<std::int64_t, 1>();
  for (std::int64_t n = 0; n < values.size(0); ++n) {
    if (values[n] < (n == 0 ? 0 : starts.back())) {
      bad_argument(kPlanOp, "cu_seqlens", "numbers that start at 0 and never fall",
                   concat(values[n], " at ", n));
    }
    starts.push_back(values[n]);
  }
  if (starts.front() != 0 || starts.back() != leading[0]) {
    bad_argument(kPlanOp, "cu_seqlens", concat("a range from 0 to the number of tokens (", leading[0], ")"),
                 concat(starts.front(), " to ", starts.back()));
  }
  return starts;
}

// 0, 1, 2, ... from the start of each sequence, [T].
Tensor index_in_sequence(const std::vector<std::int64_t>& starts, const at::Device& device) {
  const Tensor bounds = cpu_tensor(starts);
  const std::int64_t count = bounds.numel() - 1;
  const Tensor begin = bounds.narrow(0, 0, count);
  const Tensor lengths = bounds.narrow(0, 1, count) - begin;
  return to_device(torch::arange(starts.back(), torch::kInt64) - torch::repeat_interleave(begin, lengths),
                   device);
}

Tensor checked_positions(const Tensor& positions, const SequencePlanInputs& inputs) {
  if (!at::isIntegralType(positions.scalar_type(), /*includeBool=*/false) ||
      positions.sizes() != inputs.leading) {
    bad_argument(kPlanOp, "positions", concat("integers ", inputs.leading), shape_of(positions));
  }
  return positions.reshape({-1}).to(inputs.device);
}

std::int64_t common_length(const std::vector<std::int64_t>& starts) {
  const std::int64_t length = starts.size() > 1 ? starts[1] - starts[0] : 0;
  for (std::size_t n = 1; n + 1 < starts.size(); ++n) {
    if (starts[n + 1] - starts[n] != length) return 0;
  }
  return length;
}

std::int64_t longest(const std::vector<std::int64_t>& starts) {
  std::int64_t length = 0;
  for (std::size_t n = 0; n + 1 < starts.size(); ++n) length = std::max(length, starts[n + 1] - starts[n]);
  return length;
}

std::vector<SequenceGroup> make_groups(const std::vector<std::int64_t>& starts, Phase phase,
                                       std::int64_t dense_below, const at::Device& device) {
  std::vector<std::int64_t> sparse_starts = {0}, dense_starts = {0};
  std::vector<Tensor> sparse_rows, dense_rows;
  for (std::size_t n = 0; n + 1 < starts.size(); ++n) {
    const std::int64_t length = starts[n + 1] - starts[n];
    const bool sparse = phase == Phase::sparse && length >= dense_below;
    auto& group = sparse ? sparse_starts : dense_starts;
    group.push_back(group.back() + length);
    (sparse ? sparse_rows : dense_rows).push_back(torch::arange(starts[n], starts[n + 1], torch::kInt64));
  }
  const auto group_of = [](bool sparse, const std::vector<std::int64_t>& group_starts) {
    return SequenceGroup{.sparse = sparse,
                         .starts = cpu_tensor(group_starts),
                         .rows = {},
                         .common_length = common_length(group_starts),
                         .longest = longest(group_starts)};
  };
  SequenceGroup sparse = group_of(true, sparse_starts), dense = group_of(false, dense_starts);
  if (dense_rows.empty() && phase == Phase::sparse) return {sparse};
  if (sparse_rows.empty()) return {dense};
  sparse.rows = to_device(torch::cat(sparse_rows), device);
  dense.rows = to_device(torch::cat(dense_rows), device);
  return {sparse, dense};
}

}  // namespace

SequencePlan make_sequence_plan(const AttentionConfig& config, const Rope& rope,
                                const std::optional<Rope>& indexer_rope, const SequencePlanInputs& inputs) {
  const std::vector<std::int64_t> starts = sequence_starts(inputs.leading, inputs.cu_seqlens);
  const Tensor index = index_in_sequence(starts, inputs.device);
  const Tensor positions = inputs.positions ? checked_positions(*inputs.positions, inputs) : index;
  SequencePlan plan;
  plan.phase = inputs.phase;
  plan.tokens = starts.back();
  plan.starts = cpu_tensor(starts);
  plan.visible = index + 1;
  plan.rope = rope.tables(positions, inputs.type);
  if (indexer_rope && inputs.phase != Phase::dense) {
    plan.indexer_rope = indexer_rope->tables(positions, inputs.type);
  }
  plan.groups = make_groups(starts, inputs.phase, config.dense_below, inputs.device);
  return plan;
}

}  // namespace gsa::nn
