// One pass over a text that measures what is wanted: perplexity, sinks, the quality of the selection.
//
//   auto documents = dataset_documents("data/book");
//   Report report = evaluate(model, *documents, {.sinks = true, .windows = {.length = 4096, .stride = 1024}});
//   report.perplexity->per_token();
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "eval/agreement.h"
#include "eval/perplexity.h"
#include "eval/selection.h"
#include "eval/sinks.h"
#include "eval/windows.h"
#include "nn/model.h"
#include "nn/torch.h"

namespace gsa::eval {

struct EvaluateOptions {
  bool perplexity = true;
  bool sinks = false;
  bool selection = false;  // needs a model with an indexer, and phase warmup or sparse
  // Of the selection: what the best one with the same k_t would keep, and on how many queries of a window.
  bool oracle = true;
  std::int64_t oracle_queries = OracleOptions().queries;        // 0: all
  bool agreement = false;                                       // of layers on keys; needs the same
  std::int64_t agreement_queries = AgreementOptions().queries;  // of a window, at most; 0: all
  // Absent: sparse where the model is, else dense.
  std::optional<nn::Phase> phase = std::nullopt;
  WindowOptions windows = {};
  // Called after every batch with predictions done and to do; may throw, which ends the pass.
  std::function<void(std::int64_t done, std::int64_t total)> progress = nullptr;
};

// Sinks and selection are means over every query of every window (the oracle's and the agreement: over
// samples of those that leave keys out): where windows overlap, over some tokens more than once.
struct Report {
  nn::Phase phase = nn::Phase::dense;
  std::int64_t length = 0, stride = 0;
  std::int64_t windows = 0, tokens = 0;  // tokens: shown, all windows together
  std::int64_t predictions = 0;
  double seconds = 0;
  std::optional<Perplexity> perplexity;
  std::optional<Sinks> sinks;
  std::optional<SelectionQuality> selection;
  std::optional<std::int64_t> oracle_queries;  // of a window, at most; 0: all. Absent: not measured
  std::optional<Agreement> agreement;
  std::int64_t agreement_queries = 0;  // of a window, at most; 0: all
};

// On the model's device and in its type. Nothing of the model changes. Throws where the documents' tokenizer
// has ids that the model does not know.
Report evaluate(nn::Model model, const Documents& documents, const EvaluateOptions& options = {});

}  // namespace gsa::eval
