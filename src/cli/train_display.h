// What gsa train shows and records: a live line on a terminal, plain lines elsewhere, metrics.jsonl, and
// events for TensorBoard.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "train/metrics_log.h"
#include "train/tensorboard.h"
#include "train/trainer.h"

namespace gsa::cli {

class TrainDisplay {
 public:
  // Called by the trainer; open() first.
  train::TrainEvents events();
  void open(train::Trainer& trainer);
  // To standard output. Where nobody reads it any more (`| head`, a closed terminal) the training goes on: it
  // is said once on standard error, and what is left to show goes nowhere.
  void show(const std::string& text);
  // Ends the live line.
  void close();

 private:
  void step(const train::StepReport& report);
  void record(const train::StepReport& report);
  void line(const std::string& text);  // one that stays
  std::string summary(const train::StepReport& report) const;

  bool terminal_ = false, live_ = false, unread_ = false;
  train::TrainConfig config_;
  torch::Device device_ = torch::kCPU;
  std::int64_t model_layers_ = 0;
  std::optional<train::MetricsLog> log_;
  std::optional<train::TensorBoard> board_;
  nn::Phase phase_ = nn::Phase::dense;
  std::vector<train::LayerStats> layers_;  // the last that were measured in this phase
  double seconds_a_step_ = 0;              // smoothed
  std::int64_t steps_seen_ = 0;
};

}  // namespace gsa::cli
