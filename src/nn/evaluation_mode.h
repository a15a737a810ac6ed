// A model that is not in training mode for the time of a scope: running means stay as they are.
#pragma once

#include "nn/model.h"

namespace gsa::nn {

class EvaluationMode {
 public:
  explicit EvaluationMode(const Model& model) : model_(model), training_(model->is_training()) {
    model_->eval();
  }
  ~EvaluationMode() { model_->train(training_); }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  Model model_;
  bool training_;
};

}  // namespace gsa::nn
