// The indexer: small projections whose scores say which keys a query attends to (see
// kernels/select/select.h).
//
//   sigmoid (GSA)  w = sigmoid(h W_w),                scores sigmoid(q . k / sqrt(d_I) + bias_j)
//   relu (DSA)     w = h W_w / sqrt(H_I), no bias,    scores ReLU(q . k / sqrt(d_I))
//
// Its input is detached: the indexer learns from its own loss, and that loss reaches nothing else.
#pragma once

#include <functional>
#include <optional>

#include "model/config.h"
#include "nn/rope.h"
#include "nn/torch.h"
#include "torch/ops.h"

namespace gsa::nn {

// The budget in the operators' words, with the running mean of the variance as given.
ops::BudgetOptions budget_options(const BudgetConfig& config, const at::Tensor& mean_variance);

// Divides the indexer's scores in its loss.
struct Temperature {
  double value = 1;         // where it is not learned
  ops::OptTensor log = {};  // 0-dim, where it is

  bool present() const { return log || value != 1; }
  // The inputs whose scores are divided; where there is no temperature, the inputs as they are.
  ops::IndexerInputs apply(ops::IndexerInputs inputs) const;
};

class IndexerImpl : public torch::nn::Module {
 public:
  explicit IndexerImpl(const AttentionConfig& config);

  // h [T, d_model], tables of the indexer's RoPE for the tokens' positions -> inputs of the operators,
  // packed.
  ops::IndexerInputs project(const at::Tensor& h, const RopeTables& tables);

  // Of the loss alone: the selection never sees it.
  Temperature temperature() const;
  // The parameter as the operators take it beside inputs of this type; absent for ReLU scores.
  ops::OptTensor bias_as(at::ScalarType type) const;

  // The budget, with the given running mean of the variance or else the layer's as it stands (a copy: a later
  // update leaves it alone).
  ops::BudgetOptions budget(const std::optional<at::Tensor>& mean = std::nullopt) const;

  // {sum of Var_t, number of queries} as float64 [2], over the queries that see at least k_min tokens; the
  // variance of fewer scores says little. variance and visible: [T].
  at::Tensor variance_totals(const at::Tensor& variance, const at::Tensor& visible) const;

  // Moves the running mean. Called after the batch has been selected, so no query sees its own future in it.
  // Nothing moves where the totals count no query or are not finite.
  void update_mean_variance(at::Tensor totals);

  // The running mean stays in float64 whatever type the weights take: in bfloat16 a momentum of 0.99 would
  // never move it.
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Device device, bool non_blocking = false) override;

  torch::nn::Linear wq{nullptr}, wk{nullptr}, weights_proj{nullptr};
  at::Tensor bias;             // [H_I], sigmoid form only
  at::Tensor log_temperature;  // 0-dim, only where the temperature is learned
  at::Tensor mean_variance;    // float64, 0-dim; negative: not known yet

  // Where set, adds up the totals over all ranks in place. Every rank calls it once for each training batch
  // that selects, with {0, 0} where it has nothing to say.
  std::function<void(at::Tensor& totals)> reduce_totals;

 private:
  // Runs move, which may change the type of every buffer, and puts the running mean back in float64.
  void keep_mean_variance(const std::function<void()>& move);

  IndexerConfig config_;
  BudgetConfig budget_;
};

TORCH_MODULE(Indexer);

}  // namespace gsa::nn
