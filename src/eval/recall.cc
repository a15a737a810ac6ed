#include "eval/recall.h"

#include <cmath>

#include "gsa/error.h"
#include "nn/evaluation_mode.h"
#include "torch/ops.h"

namespace gsa::eval {
namespace {

using at::Tensor;

void check(const nn::Model& model, const Question& question) {
  const auto size = static_cast<std::int64_t>(question.tokens.size());
  const std::int64_t known = model->config().vocab_size;
  if (question.answer_tokens < 1 || question.answer_tokens >= size) {
    bad_argument("recall", "answer_tokens", concat("1 .. ", size - 1, " (of ", size, " tokens)"),
                 concat(question.answer_tokens));
  }
  if (question.evidence < 0 || question.evidence >= size - question.answer_tokens) {
    bad_argument("recall", "evidence",
                 concat("a place before the answer, 0 .. ", size - question.answer_tokens - 1),
                 concat(question.evidence));
  }
  for (const std::int64_t token : question.tokens) {
    if (token < 0 || token >= known) {
      bad_argument("recall", "tokens", concat("ids below ", known, ", the model's vocabulary"),
                   concat(token));
    }
  }
}

// Questions first .. last - 1 as one packed batch.
struct Pack {
  std::vector<std::int64_t> tokens, starts = {0};
};

// Whether query `row` of the sequence that begins at `begin` selected key `key` of that sequence.
bool selects(const nn::AttentionView& view, std::int64_t begin, std::int64_t row, std::int64_t key) {
  ops::IndexerInputs part = *view.indexer;
  const auto query = [&](const Tensor& x) { return x.narrow(0, begin + row, 1).unsqueeze(0); };
  part.q = query(view.indexer->q);
  part.w = query(view.indexer->w);
  part.k = view.indexer->k.narrow(0, begin, row + 1).unsqueeze(0);
  const Tensor mask = ops::select_mask(part, query(view.threshold), query(view.tie_cut)).view({-1});
  return (mask[key / 32].item<std::int32_t>() >> (key % 32) & 1) != 0;
}

}  // namespace

std::vector<Answer> ask(nn::Model model, const std::vector<Question>& questions,
                        const RecallOptions& options) {
  const bool sparse = model->config().attention.sparse;
  const nn::Phase phase = options.phase.value_or(sparse ? nn::Phase::sparse : nn::Phase::dense);
  for (const Question& question : questions) check(model, question);
  const torch::NoGradGuard no_grad;
  const nn::EvaluationMode evaluation(model);
  const torch::Device device = model->output_weight().device();
  std::vector<Answer> answers(questions.size());
  for (std::size_t first = 0; first < questions.size();) {
    Pack pack;
    std::size_t last = first;
    const auto fits = [&] {
      return last == first || static_cast<std::int64_t>(pack.tokens.size() + questions[last].tokens.size()) <=
                                  options.batch_tokens;
    };
    for (; last < questions.size() && fits(); ++last) {
      const auto& tokens = questions[last].tokens;
      pack.tokens.insert(pack.tokens.end(), tokens.begin(), tokens.end());
      pack.starts.push_back(static_cast<std::int64_t>(pack.tokens.size()));
    }
    // The row that predicts the first token of an answer.
    const auto asking = [&](std::size_t i) {
      return static_cast<std::int64_t>(questions[i].tokens.size()) - questions[i].answer_tokens - 1;
    };
    nn::ModelForwardOptions forward{.cu_seqlens = torch::tensor(pack.starts), .phase = phase};
    if (phase == nn::Phase::sparse) {
      forward.observe_attention = [&](std::int64_t, const nn::AttentionView& view) {
        for (std::size_t i = first; i < last; ++i) {
          answers[i].selected.push_back(
              selects(view, pack.starts[i - first], asking(i), questions[i].evidence));
        }
      };
    }
    const Tensor hidden = model->forward(torch::tensor(pack.tokens).to(device), forward).hidden;
    for (std::size_t i = first; i < last; ++i) {
      const std::int64_t row = pack.starts[i - first] + asking(i), count = questions[i].answer_tokens;
      const Tensor logits = model->logits(hidden.narrow(0, row, count)).to(at::kFloat).cpu();
      const std::vector<std::int64_t> wanted(questions[i].tokens.end() - count, questions[i].tokens.end());
      for (std::int64_t t = 0; t < count; ++t)
        answers[i].said.push_back(logits[t].argmax().item<std::int64_t>());
      answers[i].right = answers[i].said == wanted;
      answers[i].probability = std::exp(
          torch::log_softmax(logits, 1).gather(1, torch::tensor(wanted).unsqueeze(1)).sum().item<double>());
    }
    first = last;
    if (options.progress) options.progress(static_cast<std::int64_t>(first));
  }
  return answers;
}

}  // namespace gsa::eval
