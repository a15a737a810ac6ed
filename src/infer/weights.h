// A model's weights as inference wants them: matrices that meet the same input lie in one, because a decode
// step is bound by reading them and by the number of kernels.
#pragma once

#include <cstdint>
#include <vector>

#include "nn/model.h"
#include "nn/torch.h"

namespace gsa::infer {

// Which columns of the product with LayerWeights::input belong to what, in this order; 0: not there. `total`
// is rounded up so that every row of the product starts aligned.
struct InputColumns {
  std::int64_t q = 0, k = 0, v = 0, index_q = 0, index_k = 0, value_gate = 0, output_gate = 0, index_w = 0;
  std::int64_t total = 0;
};

// Of a layer (ModelConfig::attention_of); selects: false where the model runs dense.
InputColumns input_columns(const nn::AttentionConfig& config, bool selects);

struct LayerWeights {
  InputColumns columns;
  at::Tensor input_norm, post_norm;  // [d_model]
  at::Tensor input;                  // [columns.total, d_model]
  at::Tensor input_bias;  // [columns.total], zero but for qkv_bias and the gates; undefined without either
  at::Tensor q_norm, k_norm;  // [head_size]; undefined without qk_norm
  at::Tensor output;          // [d_model, heads * head_size]
  at::Tensor gate_up;         // [2 * intermediate, d_model]
  at::Tensor down;            // [d_model, intermediate]
  at::Tensor index_bias;      // [H_I]; undefined for the ReLU form and without an indexer
  at::Tensor mean_variance;   // float64, one element; undefined without an indexer
};

struct Weights {
  nn::ModelConfig config;
  bool selects = false;                // false: dense, whatever the configuration; no indexer
  at::Tensor embedding, norm, output;  // output is the embedding where they are tied
  std::vector<LayerWeights> layers;

  std::int64_t bytes() const;
  // Equal for the same model in the same type; caches on disk remember it.
  std::uint32_t fingerprint() const;
};

struct WeightOptions {
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  bool selects = false;
  bool take_over = false;  // empty the model's parameters as they are taken
};

Weights make_weights(const nn::Model& model, const WeightOptions& options);

}  // namespace gsa::infer
