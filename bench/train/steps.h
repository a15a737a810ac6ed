// What gsa_bench_train times: a model, its optimiser and tokens, as the trainer's step without its data,
// guards and logs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "nn/model.h"
#include "nn/torch.h"
#include "train/adamw.h"

namespace gsa::bench {

constexpr std::int64_t kMaxTokenRuns = 4096;

struct Case {
  std::string model;   // a preset's name, or what to call the folder
  std::string system;  // of system_names(), or "trained": what the folder is, with its weights
  std::int64_t length = 0, sequences = 0;  // of a step
  bool deterministic = true;
  std::optional<nn::Phase> phase = std::nullopt;  // absent: sparse where the model is, else dense
  // Of the indexer's loss, as the trainer has it by default. The share holds for a loss over all keys.
  nn::KlSupport kl_support = nn::KlSupport::all;
  double kl_share = 1.0 / 64;
  // Random tokens come in runs of so many equal ones: neighbours then select much the same keys, as in a
  // trained model.
  std::int64_t token_runs = 1;
  // Above 0: union/k that is wanted, and the runs are those that come nearest to it.
  double overlap = 0;
  // Absent: the preset's own.
  std::optional<BudgetMode> budget = std::nullopt;

  std::string name() const;
};

// A trained model and a text. Empty: presets at random, and random tokens.
struct Trained {
  std::filesystem::path model, data;
  bool given() const { return !model.empty(); }
};

// Of every layer that selects: union/k (see trained/overlap.h), and the mean of k_t over its queries.
struct Overlap {
  std::vector<double> by_layer, k_by_layer;
  double mean() const;
  double min() const;
  double max() const;
  double mean_k() const;
};

class Steps {
 public:
  Steps(const Case& what, const torch::Device& device, const Trained& trained);

  // Waits for the device at the end, as the trainer does when it looks at the norms.
  void operator()();

  double operations() const;
  double tokens() const { return static_cast<double>(length_ * sequences_); }
  // Nats a token; of warm-up, which has no such loss, the sum of KL.
  double loss() const { return loss_; }
  std::int64_t parameters() const;
  std::int64_t token_runs() const { return token_runs_; }
  // Where a union/k was wanted: the runs that were tried for it, and the mean over layers that each gave.
  const std::vector<std::pair<std::int64_t, double>>& overlap_tried() const { return overlap_tried_; }
  // Of the model as it is now, by a forward pass over the first sequence. Absent where no layer selects, and
  // where the sequence is too short to tell.
  std::optional<Overlap> overlap();
  const nn::ModelConfig& config() const { return config_; }

 private:
  void make_model(const Case& what, const torch::Device& device, const Trained& trained);
  void draw_tokens(std::int64_t runs, const torch::Device& device);
  void draw_tokens_with_overlap(double wanted, const torch::Device& device);

  nn::ModelConfig config_;
  nn::Model model_{nullptr};
  nn::Phase phase_ = nn::Phase::dense;
  std::optional<train::AdamW> optimizer_;
  at::Tensor tokens_, starts_;
  std::int64_t length_ = 0, sequences_ = 0, token_runs_ = 1;
  bool deterministic_ = true;
  nn::KlSupport kl_support_ = nn::KlSupport::all;
  double kl_share_ = 1;
  std::uint64_t step_ = 0;
  double rate_ = 0, loss_ = 0;
  std::vector<std::pair<std::int64_t, double>> overlap_tried_;
};

}  // namespace gsa::bench
