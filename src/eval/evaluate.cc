#include "eval/evaluate.h"

#include <algorithm>
#include <chrono>

#include "core/file.h"
#include "gsa/error.h"
#include "nn/evaluation_mode.h"

namespace gsa::eval {
namespace {

using at::Tensor;

nn::Phase checked_phase(const nn::Model& model, const EvaluateOptions& options) {
  const bool sparse = model->config().attention.sparse;
  const nn::Phase phase = options.phase.value_or(sparse ? nn::Phase::sparse : nn::Phase::dense);
  if (phase != nn::Phase::dense && !sparse) {
    bad_argument("eval", "phase", "dense for a model without an indexer", nn::name_of(phase));
  }
  if ((options.selection || options.agreement) && phase == nn::Phase::dense) {
    bad_argument("eval", options.selection ? "selection" : "agreement",
                 "a model with an indexer, in phase warmup or sparse",
                 sparse ? "phase dense" : "a model without an indexer");
  }
  if (options.oracle_queries < 0) {
    bad_argument("eval", "oracle_queries", "0 (all) or more", concat(options.oracle_queries));
  }
  if (!options.perplexity && !options.sinks && !options.selection && !options.agreement) {
    bad_argument("eval", "options", "perplexity, sinks, selection or agreement", "none of them");
  }
  return phase;
}

Tensor tensor_of(std::vector<std::int64_t>& values) {
  return torch::from_blob(values.data(), {static_cast<std::int64_t>(values.size())}, at::kLong);
}

// Meters of what is wanted, and the observers that feed them.
class Meters {
 public:
  Meters(const nn::ModelConfig& config, const EvaluateOptions& options, nn::Phase phase)
      : phase_(phase), oracle_(options.oracle), oracle_options_{.queries = options.oracle_queries} {
    if (options.sinks) sinks_.emplace(config);
    if (options.selection) selection_.emplace(config);
    if (options.agreement) {
      agreement_.emplace(config.layers, AgreementOptions{.queries = options.agreement_queries});
    }
  }

  nn::ModelForwardOptions forward_options(const Tensor& starts) {
    nn::ModelForwardOptions options{.cu_seqlens = starts, .phase = phase_};
    if (sinks_) {
      options.observe = [this, starts](std::int64_t index, const Tensor& residual) {
        sinks_->see_residual(index, residual, starts);
      };
    }
    if (sinks_ || selection_ || agreement_) {
      options.observe_attention = [this](std::int64_t layer, const nn::AttentionView& view) {
        see_attention(layer, view);
      };
    }
    return options;
  }

  void report(Report& report) const {
    if (sinks_) report.sinks = sinks_->result();
    if (selection_) report.selection = selection_->result();
    if (agreement_) report.agreement = agreement_->result();
  }

 private:
  void see_attention(std::int64_t layer, const nn::AttentionView& view) {
    const bool sparse = phase_ == nn::Phase::sparse;
    std::optional<MaskFacts> facts;
    if (selection_ || (agreement_ && !sparse)) {
      const ComparedSelection selection = compare_with_dense(view);
      const SelectionRows rows{selection.k_t, selection.threshold, selection.tie_cut};
      if (selection_) {
        facts = read_masks(view.starts, *view.indexer, rows);
        const OracleTotals oracle =
            oracle_ ? compare_with_oracle(view, rows, oracle_options_) : OracleTotals{};
        selection_->see_attention(layer, view, selection, *facts, oracle);
      }
      if (agreement_) agreement_->see_attention(layer, view, rows);
    } else if (sparse) {
      const SelectionRows rows{view.k_t, view.threshold, view.tie_cut};
      if (sinks_) facts = read_masks(view.starts, *view.indexer, rows);
      if (agreement_) agreement_->see_attention(layer, view, rows);
    }
    // In warm-up the selection is only what would be: attention is paid to everything.
    if (sinks_) sinks_->see_attention(layer, view, sparse ? &*facts : nullptr);
  }

  nn::Phase phase_;
  bool oracle_;
  OracleOptions oracle_options_;
  std::optional<SinkMeter> sinks_;
  std::optional<SelectionMeter> selection_;
  std::optional<AgreementMeter> agreement_;
};

}  // namespace

Report evaluate(nn::Model model, const Documents& documents, const EvaluateOptions& options) {
  const auto begin = std::chrono::steady_clock::now();
  const std::int64_t known = model->config().vocab_size, ids = documents.tokenizer().vocab_size();
  if (ids > known) {
    bad_file(documents.name(), concat("tokens of a vocabulary of at most ", known, ", the model's"),
             concat("one of ", ids));
  }
  Report report;
  report.phase = checked_phase(model, options);
  WindowReader reader(documents, options.windows);
  report.length = options.windows.length;
  report.stride = options.windows.stride == 0 ? options.windows.length : options.windows.stride;

  const torch::NoGradGuard no_grad;
  const nn::EvaluationMode evaluation(model);
  const torch::Device device = model->output_weight().device();
  Meters meters(model->config(), options, report.phase);
  Perplexity perplexity;
  while (std::optional<WindowBatch> batch = reader.next()) {
    const Tensor tokens = tensor_of(batch->tokens).to(device);
    const nn::ModelForwardOptions forward = meters.forward_options(tensor_of(batch->starts));
    if (options.perplexity) {
      const Tensor targets = tensor_of(batch->targets).to(device);
      perplexity.nats += model->loss(tokens, targets, forward).sum.to(at::kDouble).item<double>();
      perplexity.predictions += batch->predictions;
      perplexity.text_bytes += batch->text_bytes;
    } else {
      model->forward(tokens, forward);
    }
    report.windows += batch->windows();
    report.tokens += batch->starts.back();
    report.predictions += batch->predictions;
    if (options.progress) options.progress(report.predictions, reader.predictions());
  }
  if (options.perplexity) report.perplexity = perplexity;
  meters.report(report);
  if (options.selection && options.oracle) report.oracle_queries = options.oracle_queries;
  if (options.agreement) report.agreement_queries = options.agreement_queries;
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return report;
}

}  // namespace gsa::eval
