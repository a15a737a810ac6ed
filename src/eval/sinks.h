// Attention sinks: how much attention goes to a sequence's first token, what the gates let through, and how
// large the residual stream grows.
//
// The share of the first key needs no matrix: it is exp(q . k_0 / sqrt(d) - lse), and 0 where a sparse query
// does not select that key. The first query, which sees nothing else, is left out of the mean.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "eval/masks.h"
#include "model/model_config.h"
#include "nn/torch.h"

namespace gsa::eval {

struct LayerSinks {
  std::vector<double> first_token;                // one a head, mean over queries; NaN where no query counts
  std::optional<double> value_gate, output_gate;  // mean of the sigmoids; absent where there is no such gate

  double first_token_mean() const;  // over heads
};

// The residual stream, all values of all tokens.
struct ResidualSize {
  double largest = 0;         // of the magnitudes
  double rms = 0;             // root of the mean square
  std::int64_t position = 0;  // in its sequence, of the token with the largest
};

struct Sinks {
  std::vector<LayerSinks> layers;
  std::vector<ResidualSize> residual;  // one more than layers: before the first one, after each
  double even_share = 0;     // what even attention would pay to the first token: mean of 1 / (t + 1)
  std::int64_t queries = 0;  // that count for the shares

  double first_token_mean() const;  // over layers and heads
  double largest() const;           // of the whole stream
};

// Adds up over any number of forward passes.
class SinkMeter {
 public:
  explicit SinkMeter(const nn::ModelConfig& config);

  // facts: of the selection where the phase is sparse, else none.
  void see_attention(std::int64_t layer, const nn::AttentionView& view, const MaskFacts* facts);
  void see_residual(std::int64_t index, const at::Tensor& residual, const at::Tensor& starts);

  Sinks result() const;

 private:
  struct Mean {
    double sum = 0;
    std::int64_t count = 0;
    void add(const at::Tensor& values);  // those of a gate before its sigmoid
    std::optional<double> value() const;
  };
  struct Layer {
    std::vector<double> first_token;  // sums
    std::int64_t queries = 0;
    double even = 0;
    Mean value_gate, output_gate;
  };
  struct Residual {
    ResidualSize size;
    double squares = 0;
    std::int64_t values = 0;
  };

  std::vector<Layer> layers_;
  std::vector<Residual> residual_;
};

// exp(q . k_0 / sqrt(d) - lse), Real [T, heads]: the first key's share of each query's attention, were it
// selected.
at::Tensor first_token_share(const nn::AttentionView& view);

}  // namespace gsa::eval
