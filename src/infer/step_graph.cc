#include "infer/step_graph.h"

#include <algorithm>
#include <bit>

namespace gsa::infer {

using at::Tensor;

struct StepGraphs::Graph {
  Pass pass;
  Tensor wide;    // int64 [3, rows]: tokens, positions, slots
  Tensor narrow;  // int32 [rows * (1 + blocks)]: lengths, then page tables
  std::int64_t rows = 0, blocks = 0;
  Tensor logits;
  std::unique_ptr<CapturedWork> work;
};

std::int64_t rounded_batch(std::int64_t rows) {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(rows)));
}

std::int64_t rounded_length(std::int64_t length) {
  constexpr std::int64_t kMin = 1024;
  if (length <= kMin) return kMin;
  const auto step = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(length))) / 8;
  return (length + step - 1) / step * step;
}

StepGraphs::StepGraphs(const Network& network, Cache& cache, std::optional<Tensor> key_sum)
    : network_(network), cache_(cache), key_sum_(std::move(key_sum)), generation_(cache.generation()) {}

StepGraphs::~StepGraphs() = default;

StepGraphs::Graph& StepGraphs::graph_for(std::int64_t rows, std::int64_t longest, bool sparse) {
  if (generation_ != cache_.generation()) {
    graphs_.clear();
    generation_ = cache_.generation();
  }
  std::unique_ptr<Graph>& graph = graphs_[{rows, longest, sparse}];
  if (graph) return *graph;
  graph = std::make_unique<Graph>();
  const at::Device device = cache_.device();
  graph->rows = rows;
  graph->blocks = cache_.shape().pages_for(longest);
  graph->wide = torch::zeros({3, rows}, torch::dtype(at::kLong).device(device));
  graph->narrow = torch::zeros({rows * (1 + graph->blocks)}, torch::dtype(at::kInt).device(device));
  graph->pass.tokens = graph->wide[0];
  graph->pass.positions = graph->wide[1];
  graph->pass.slots = graph->wide[2];
  graph->pass.sparse = sparse;
  graph->pass.parts = {{.sequences = rows,
                        .queries = 1,
                        .block_table = graph->narrow.narrow(0, rows, rows * graph->blocks).view({rows, -1}),
                        .lengths = graph->narrow.narrow(0, 0, rows),
                        .max_length = longest}};
  return *graph;
}

Tensor StepGraphs::run(std::span<const StepRow> rows, bool sparse) {
  std::int64_t longest = 0;
  for (const StepRow& row : rows) longest = std::max(longest, row.sequence->length() + 1);
  const auto count = static_cast<std::int64_t>(rows.size());
  Graph& graph = graph_for(rounded_batch(count), rounded_length(longest), sparse);

  // Rows beyond the batch stay 0: sequences of length 0, whose token goes to the page that is nobody's.
  const auto pinned = [](at::ScalarType type) { return torch::dtype(type).pinned_memory(true); };
  Tensor wide = torch::zeros({3, graph.rows}, pinned(at::kLong));
  Tensor narrow = torch::zeros({graph.rows * (1 + graph.blocks)}, pinned(at::kInt));
  std::int64_t* numbers = wide.mutable_data_ptr<std::int64_t>();
  std::int32_t* lengths = narrow.mutable_data_ptr<std::int32_t>();
  std::int32_t* tables = lengths + graph.rows;
  const std::int64_t page = cache_.shape().page_size;
  for (std::int64_t i = 0; i < count; ++i) {
    const StepRow& row = rows[static_cast<std::size_t>(i)];
    const std::int64_t position = row.sequence->length();
    const std::vector<std::int32_t>& pages = row.sequence->pages();
    numbers[i] = row.token;
    numbers[graph.rows + i] = position;
    numbers[2 * graph.rows + i] = pages[static_cast<std::size_t>(position / page)] * page + position % page;
    lengths[i] = static_cast<std::int32_t>(position + 1);
    const auto used = std::min<std::size_t>(pages.size(), static_cast<std::size_t>(position / page + 1));
    std::copy_n(pages.begin(), used, tables + i * graph.blocks);
  }
  graph.wide.copy_(wide, /*non_blocking=*/true);
  graph.narrow.copy_(narrow, /*non_blocking=*/true);

  if (!graph.work) {
    std::optional<Tensor> before;
    if (key_sum_) before = key_sum_->clone();
    graph.work =
        capture([&] { graph.logits = network_.logits(network_.forward(graph.pass, cache_, key_sum_)); });
    if (key_sum_) key_sum_->copy_(*before);  // what was run for the capture does not count
  }
  graph.work->replay();
  return graph.logits.narrow(0, 0, count);
}

}  // namespace gsa::infer
