// Questions whose answer stands in the text before them: does the model find it, and did its indexer select
// the place where it stands?
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "nn/model.h"
#include "nn/torch.h"

namespace gsa::eval {

struct Question {
  std::vector<std::int64_t> tokens;  // the text up to the question's end, then the answer
  std::int64_t answer_tokens = 1;    // how many of them are the answer
  std::int64_t evidence = 0;         // index of the token in the text that gives the answer away
};

struct Answer {
  bool right = false;      // every token of the answer was the most probable one
  double probability = 0;  // of the whole answer
  // The most probable tokens in its place, each after the right ones before it.
  std::vector<std::int64_t> said = {};
  // One a layer: whether the query that predicts the answer's first token selected the evidence. Empty where
  // attention is dense.
  std::vector<bool> selected = {};
};

struct RecallOptions {
  // Absent: sparse where the model is, else dense.
  std::optional<nn::Phase> phase = std::nullopt;
  std::int64_t batch_tokens = 8192;  // questions that fit are asked together; one always is
  // Called after every batch with questions done; may throw, which ends the pass.
  std::function<void(std::int64_t done)> progress = nullptr;
};

// One answer a question, in their order. Nothing of the model changes.
std::vector<Answer> ask(nn::Model model, const std::vector<Question>& questions,
                        const RecallOptions& options = {});

}  // namespace gsa::eval
