// A small model with random weights that reads and writes bytes, for the tests of generated text.
#pragma once

#include "data/tokenizer.h"
#include "nn/model.h"
#include "nn/torch.h"

namespace gsa::infer::testing {

inline nn::Model text_model(nn::System system = nn::System::gsa) {
  nn::ModelConfig config = nn::ModelConfig::preset("tiny");
  config.layers = 2;
  config.eos_ids.clear();  // the tokenizer's own ends a text; random weights draw it rarely
  config.attention.init_std = 0.2;
  config.attention.budget = {.mode = BudgetMode::inverse, .base = 12, .min = 4, .max = 24};
  apply(config, system);
  torch::manual_seed(5);
  nn::Model model(config);
  model->to(torch::kFloat64);  // so that rounding in batches of other sizes moves no token
  model->eval();
  return model;
}

inline const data::Tokenizer& bytes() {
  static const auto tokenizer = data::byte_tokenizer();
  return *tokenizer;
}

}  // namespace gsa::infer::testing
