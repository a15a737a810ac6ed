// The configuration of one attention layer: every switch between the four systems of the paper and every
// ablation is a field here. Defaults are those of a 7B-class model. No torch header, so that tools may read
// it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kernels/select/select.h"

namespace gsa::nn {

enum class GateKind { none, elementwise, headwise };

const char* name_of(GateKind kind);
const char* name_of(ScoreForm form);
const char* name_of(BudgetMode mode);

// YaRN: RoPE for lengths beyond the trained one. factor 1 is plain RoPE.
struct YarnConfig {
  double factor = 1;  // new length / original length
  std::int64_t original_length = 4096;
  double beta_fast = 32;  // dimensions that rotate more often than this keep their frequency
  double beta_slow = 1;   // those that rotate less often are interpolated entirely
  // Multiplies rotated queries and keys. Absent: 0.1 ln(factor) + 1.
  std::optional<double> attention_factor = std::nullopt;
  bool truncate = true;  // the ramp between the two begins and ends at whole dimensions
};

// Llama 3.1's: dimensions that rotate less often than low_freq_factor times over the original length are
// interpolated entirely, those that do more often than high_freq_factor times keep their frequency. factor 1
// is plain RoPE.
struct Llama3RopeConfig {
  double factor = 1;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  std::int64_t original_length = 8192;
};

// At most one of the three scalings.
struct RopeConfig {
  double theta = 10000;
  YarnConfig yarn;
  double linear_factor = 1;  // divides every frequency
  Llama3RopeConfig llama3;

  bool has_yarn() const { return yarn.factor != 1 || yarn.attention_factor.has_value(); }
};

// softmax(I / value) in the indexer's loss; the selection never sees it. Sums of sigmoids are bounded, so at
// 1 no key of a long row can get the share that attention gives it (docs/recipe.md has what that costs).
struct TemperatureConfig {
  double value = 0.1;  // where it starts when learned; ReLU scores have 1, see set_form
  bool learned = false;
};

struct IndexerConfig {
  std::int64_t heads = 4;       // H_I, 1 .. 128
  std::int64_t head_size = 64;  // d_I, 1 .. 256
  ScoreForm form = ScoreForm::sigmoid;
  // Share of d_I, from the front, that is rotated; 0: no positions at all. All of it finds far more of what
  // attention wants than half (docs/specification.md, Indexer).
  double rope_fraction = 1;
  TemperatureConfig temperature;
  double mean_variance_momentum = 0.99;
};

// Sets the form of the scores. Where that changes it, the temperature becomes the form's default (sigmoid
// 0.1, relu 1), unless it is learned.
void set_form(IndexerConfig& indexer, ScoreForm form);

struct BudgetConfig {
  BudgetMode mode = BudgetMode::inverse;
  std::int64_t base = 2048;
  std::int64_t min = 256;
  std::int64_t max = 4096;
};

struct AttentionConfig {
  std::int64_t d_model = 4096;
  std::int64_t heads = 32;
  std::int64_t kv_heads = 8;
  std::int64_t head_size = 128;  // 2 .. 256, even (RoPE rotates pairs)

  bool qkv_bias = false;  // q_proj, k_proj and v_proj have biases (Qwen2)
  bool qk_norm = false;   // RMSNorm of every head of q and k before RoPE (Qwen3)

  bool sparse = true;     // false: no indexer, dense causal attention
  IndexerConfig indexer;  // not read when sparse is false, nor is budget
  BudgetConfig budget;
  // Sparse without an indexer of its own: attends to what a layer before it has selected (its leader's
  // indexer and budget stand here all the same). ModelConfig::attention_of sets it.
  bool shares_selection = false;
  std::int64_t dense_below = 0;  // sequences with fewer keys run dense: this changes results

  GateKind value_gate = GateKind::elementwise;   // G2
  GateKind output_gate = GateKind::elementwise;  // G1

  RopeConfig rope;

  double init_std = 0.02;  // of projections
  // Where gates start, in (0, 1): the sigmoid of their bias. At one half each, both together leave attention a quarter
  // of its weight in the residual stream, and models learn to look things up later (docs/recipe.md, Gates).
  double gate_init = 0.9;
  double gate_init_std = 0.002;  // of gate weights: small, so that a gate starts near gate_init

  static AttentionConfig standard();     // dense, no gates
  static AttentionConfig sparse_only();  // DSA: ReLU scores with linear weights, fixed k, no gates
  static AttentionConfig gated_only();   // dense, both gates
  static AttentionConfig gsa();          // the defaults

  // Throws gsa::Error naming the field, what was expected and what came.
  void validate() const;

  // A few lines for people.
  std::string describe() const;

  bool has_indexer() const { return sparse && !shares_selection; }

  // How many of the indexer's dimensions are rotated.
  std::int64_t indexer_rope_size() const;
};

// The bias whose sigmoid is gate_init: 0 for one half.
double gate_init_bias(const AttentionConfig& config);

// The factor that YaRN puts on rotated queries and keys.
double attention_factor(const YarnConfig& yarn);

}  // namespace gsa::nn
