#include "model/config.h"

#include <cmath>
#include <sstream>

#include "core/checked.h"
#include "gsa/error.h"
#include "model/field_checks.h"

namespace gsa::nn {
namespace {

constexpr FieldChecks require{"nn::AttentionConfig"};

// Written so that NaN fails too.
void require_positive(const char* field, double value) {
  require(value > 0 && std::isfinite(value), field, "a positive finite number", value);
}

void validate_rope(const RopeConfig& rope) {
  require(rope.theta > 1 && std::isfinite(rope.theta), "rope.theta", "a finite number above 1", rope.theta);
  const YarnConfig& yarn = rope.yarn;
  require(yarn.factor >= 1 && std::isfinite(yarn.factor), "rope.yarn.factor", "a finite number, 1 or more",
          yarn.factor);
  require(yarn.original_length > 0, "rope.yarn.original_length", "a positive number", yarn.original_length);
  require_positive("rope.yarn.beta_slow", yarn.beta_slow);
  require(yarn.beta_fast > yarn.beta_slow && std::isfinite(yarn.beta_fast), "rope.yarn.beta_fast",
          concat("a finite number above beta_slow (", yarn.beta_slow, ")"), yarn.beta_fast);
  if (yarn.attention_factor) require_positive("rope.yarn.attention_factor", *yarn.attention_factor);
  require(rope.linear_factor >= 1 && std::isfinite(rope.linear_factor), "rope.linear_factor",
          "a finite number, 1 or more", rope.linear_factor);
  const Llama3RopeConfig& llama3 = rope.llama3;
  require(llama3.factor >= 1 && std::isfinite(llama3.factor), "rope.llama3.factor",
          "a finite number, 1 or more", llama3.factor);
  require_positive("rope.llama3.low_freq_factor", llama3.low_freq_factor);
  require(llama3.high_freq_factor > llama3.low_freq_factor && std::isfinite(llama3.high_freq_factor),
          "rope.llama3.high_freq_factor",
          concat("a finite number above low_freq_factor (", llama3.low_freq_factor, ")"),
          llama3.high_freq_factor);
  require(llama3.original_length > 0, "rope.llama3.original_length", "a positive number",
          llama3.original_length);
  const int scalings = int{rope.has_yarn()} + int{rope.linear_factor != 1} + int{llama3.factor != 1};
  require(scalings <= 1, "rope", "one of YaRN, linear and llama3 scaling", scalings);
}

void validate_indexer(const IndexerConfig& indexer) {
  require.range("indexer.heads", indexer.heads, 1, 128);
  require.range("indexer.head_size", indexer.head_size, 1, 256);
  require(indexer.rope_fraction >= 0 && indexer.rope_fraction <= 1, "indexer.rope_fraction",
          "a number in 0 .. 1", indexer.rope_fraction);
  const double rotated = indexer.rope_fraction * static_cast<double>(indexer.head_size);
  require(std::abs(rotated - 2 * std::round(rotated / 2)) < 1e-9, "indexer.rope_fraction",
          concat("a share of head_size ", indexer.head_size, " that is an even number of dimensions"),
          concat(indexer.rope_fraction, " (", rotated, " dimensions)"));
  require_positive("indexer.temperature.value", indexer.temperature.value);
  require(indexer.mean_variance_momentum >= 0 && indexer.mean_variance_momentum < 1,
          "indexer.mean_variance_momentum", "a number in 0 .. 1, below 1", indexer.mean_variance_momentum);
}

void validate_budget(const BudgetConfig& budget) {
  // Kernels count positions in 32 bits.
  require.range("budget.min", budget.min, 1, INT32_MAX);
  require.range("budget.max", budget.max, 1, INT32_MAX);
  require(budget.min <= budget.max, "budget.min", concat("at most budget.max (", budget.max, ")"),
          budget.min);
  // A base outside the bounds would be clamped without a word.
  require.range("budget.base", budget.base, budget.min, budget.max);
}

}  // namespace

const char* name_of(GateKind kind) {
  switch (kind) {
    case GateKind::none:
      return "none";
    case GateKind::elementwise:
      return "elementwise";
    case GateKind::headwise:
      return "headwise";
  }
  bad_argument(require.op, "gate", "none, elementwise or headwise", concat(static_cast<int>(kind)));
}

const char* name_of(ScoreForm form) {
  switch (form) {
    case ScoreForm::sigmoid:
      return "sigmoid";
    case ScoreForm::relu:
      return "relu";
  }
  bad_argument(require.op, "indexer.form", "sigmoid or relu", concat(static_cast<int>(form)));
}

const char* name_of(BudgetMode mode) {
  switch (mode) {
    case BudgetMode::inverse:
      return "inverse";
    case BudgetMode::proportional:
      return "proportional";
    case BudgetMode::fixed:
      return "fixed";
  }
  bad_argument(require.op, "budget.mode", "inverse, proportional or fixed", concat(static_cast<int>(mode)));
}

void set_form(IndexerConfig& indexer, ScoreForm form) {
  if (form == indexer.form) return;
  indexer.form = form;
  if (indexer.temperature.learned) return;
  indexer.temperature.value = form == ScoreForm::sigmoid ? TemperatureConfig().value : 1;
}

double attention_factor(const YarnConfig& yarn) {
  return yarn.attention_factor.value_or(0.1 * std::log(yarn.factor) + 1);
}

AttentionConfig AttentionConfig::standard() {
  AttentionConfig config = gated_only();
  config.value_gate = GateKind::none;
  config.output_gate = GateKind::none;
  return config;
}

AttentionConfig AttentionConfig::sparse_only() {
  AttentionConfig config;
  set_form(config.indexer, ScoreForm::relu);
  config.budget.mode = BudgetMode::fixed;
  config.value_gate = GateKind::none;
  config.output_gate = GateKind::none;
  return config;
}

AttentionConfig AttentionConfig::gated_only() {
  AttentionConfig config;
  config.sparse = false;
  return config;
}

AttentionConfig AttentionConfig::gsa() { return {}; }

std::int64_t AttentionConfig::indexer_rope_size() const {
  return std::llround(indexer.rope_fraction * static_cast<double>(indexer.head_size));
}

void AttentionConfig::validate() const {
  require(d_model > 0, "d_model", "a positive number", d_model);
  require(heads > 0, "heads", "a positive number", heads);
  require(kv_heads > 0 && heads % kv_heads == 0, "kv_heads",
          concat("a positive divisor of heads (", heads, ")"), kv_heads);
  require(head_size >= 2 && head_size <= 256 && head_size % 2 == 0, "head_size", "an even number in 2 .. 256",
          head_size);
  checked_mul(d_model, checked_mul(heads, head_size, require.op, "heads"), require.op, "d_model");
  name_of(value_gate);
  name_of(output_gate);

  require(dense_below >= 0, "dense_below", "0 or more", dense_below);
  if (sparse) {
    name_of(indexer.form);
    name_of(budget.mode);
    validate_indexer(indexer);
    validate_budget(budget);
  } else {
    require(dense_below == 0, "dense_below", "0 where sparse is false (everything is dense)", dense_below);
    require(!shares_selection, "shares_selection", "false where sparse is false (nothing is selected)",
            "true");
  }
  validate_rope(rope);
  require_positive("init_std", init_std);
  require(gate_init > 0 && gate_init < 1, "gate_init", "a number between 0 and 1, both excluded", gate_init);
  require(gate_init_std >= 0 && std::isfinite(gate_init_std), "gate_init_std", "a finite number, 0 or more",
          gate_init_std);
}

std::string AttentionConfig::describe() const {
  std::ostringstream out;
  out << "model      d_model " << d_model << ", " << heads << " query heads, " << kv_heads
      << " key/value heads of " << head_size << (qkv_bias ? ", biases of q, k and v" : "")
      << (qk_norm ? ", RMSNorm of q and k" : "") << '\n';
  if (sparse) {
    out << "attention  sparse, " << name_of(budget.mode) << " budget, k " << budget.base;
    if (budget.mode != BudgetMode::fixed) out << " in [" << budget.min << ", " << budget.max << ']';
    if (dense_below > 0) out << ", dense below " << dense_below << " keys";
    if (shares_selection) out << ", over what a layer before selected";
    out << "\nindexer    " << indexer.heads << " heads of " << indexer.head_size << ", "
        << name_of(indexer.form) << ", RoPE on " << indexer_rope_size() << " dimensions, temperature "
        << indexer.temperature.value << (indexer.temperature.learned ? " (learned)" : "")
        << ", variance momentum " << indexer.mean_variance_momentum << '\n';
  } else {
    out << "attention  dense\n";
  }
  out << "gates      value " << name_of(value_gate) << ", output " << name_of(output_gate);
  out << "\npositions  RoPE, theta " << rope.theta;
  if (rope.yarn.factor != 1 || attention_factor(rope.yarn) != 1) {
    out << ", YaRN x " << rope.yarn.factor << " over " << rope.yarn.original_length << " tokens (beta "
        << rope.yarn.beta_fast << ", " << rope.yarn.beta_slow << "; attention factor "
        << attention_factor(rope.yarn) << ')';
  }
  if (rope.linear_factor != 1) out << ", linear scaling x " << rope.linear_factor;
  if (rope.llama3.factor != 1) {
    out << ", llama3 scaling x " << rope.llama3.factor << " over " << rope.llama3.original_length
        << " tokens (" << rope.llama3.low_freq_factor << ", " << rope.llama3.high_freq_factor << ')';
  }
  out << "\ninit       std " << init_std;
  if (value_gate != GateKind::none || output_gate != GateKind::none) {
    out << ", gates " << gate_init_std << " from " << gate_init;
  }
  out << '\n';
  return out.str();
}

double gate_init_bias(const AttentionConfig& config) {
  return std::log(config.gate_init / (1 - config.gate_init));
}

}  // namespace gsa::nn
