// Answers and what was selected for them, against one forward pass a question and a ranking of all scores.
#include "eval/recall.h"

#include <gtest/gtest.h>

#include <cmath>

#include "gsa/error.h"
#include "nn/small_models.h"
#include "torch/ops.h"

namespace gsa::eval {
namespace {

using at::Tensor;
using nn::testing::four_systems;
using nn::testing::kVocabulary;
using nn::testing::NamedConfig;

nn::Model recall_model(const nn::AttentionConfig& attention) {
  nn::Model model = nn::testing::make_model(nn::testing::small_model(attention));
  if (attention.sparse) {
    torch::NoGradGuard no_grad;
    for (auto& layer : model->model->layers) layer->self_attn->indexer->mean_variance.fill_(0.01);
  }
  return model;
}

std::vector<Question> some_questions() {
  std::vector<Question> questions;
  for (const std::int64_t size : {9, 40, 23, 57, 2}) {
    const Tensor tokens = nn::testing::random_tokens({size}, static_cast<std::uint64_t>(size));
    Question question;
    question.tokens.assign(tokens.const_data_ptr<std::int64_t>(),
                           tokens.const_data_ptr<std::int64_t>() + size);
    question.answer_tokens = size > 20 ? 2 : 1;
    question.evidence = size / 3;
    questions.push_back(std::move(question));
  }
  return questions;
}

// The plain way: each question in a pass of its own.
Answer plain_answer(nn::Model& model, const Question& question) {
  torch::NoGradGuard no_grad;
  model->eval();
  const auto size = static_cast<std::int64_t>(question.tokens.size());
  const std::int64_t first = size - question.answer_tokens;
  Answer answer;
  nn::ModelForwardOptions options;
  options.observe_attention = [&](std::int64_t, const nn::AttentionView& view) {
    if (!view.k_t.defined()) return;
    ops::IndexerInputs indexer = *view.indexer;
    indexer.q = indexer.q.unsqueeze(0);
    indexer.k = indexer.k.unsqueeze(0);
    indexer.w = indexer.w.unsqueeze(0);
    const Tensor scores = ops::index_scores(indexer)[0][first - 1].narrow(0, 0, first);
    const Tensor own = scores[question.evidence];
    const std::int64_t better = (scores > own).sum().item<std::int64_t>() +
                                (scores.narrow(0, 0, question.evidence) == own).sum().item<std::int64_t>();
    answer.selected.push_back(better < view.k_t[first - 1].item<std::int64_t>());
  };
  const Tensor hidden = model->forward(torch::tensor(question.tokens).unsqueeze(0), options).hidden[0];
  const Tensor log_p = torch::log_softmax(model->logits(hidden).to(torch::kFloat64), -1);
  answer.right = true;
  double sum = 0;
  for (std::int64_t t = first; t < size; ++t) {
    const std::int64_t wanted = question.tokens[static_cast<std::size_t>(t)];
    answer.said.push_back(log_p[t - 1].argmax().item<std::int64_t>());
    answer.right &= answer.said.back() == wanted;
    sum += log_p[t - 1][wanted].item<double>();
  }
  answer.probability = std::exp(sum);
  return answer;
}

TEST(Recall, answers_as_one_pass_a_question_does) {
  for (const NamedConfig& system : four_systems()) {
    SCOPED_TRACE(system.name);
    nn::Model model = recall_model(system.config);
    std::vector<Question> questions = some_questions();
    // One whose answer is what the model says, so that something is right.
    const Answer before = plain_answer(model, questions[0]);
    questions[0].tokens.back() = before.said[0];
    for (const std::int64_t batch_tokens : {1, 60, 1000}) {
      std::int64_t done = 0;
      const std::vector<Answer> answers = ask(
          model, questions, {.batch_tokens = batch_tokens, .progress = [&](std::int64_t n) { done = n; }});
      ASSERT_EQ(answers.size(), questions.size());
      EXPECT_EQ(done, static_cast<std::int64_t>(questions.size()));
      EXPECT_TRUE(answers[0].right);
      for (std::size_t i = 0; i < questions.size(); ++i) {
        const Answer plain = plain_answer(model, questions[i]);
        EXPECT_EQ(answers[i].right, plain.right) << i;
        EXPECT_EQ(answers[i].said, plain.said) << i;
        EXPECT_EQ(answers[i].selected, plain.selected) << i;
        EXPECT_NEAR(answers[i].probability, plain.probability, 1e-6) << i;
        EXPECT_EQ(answers[i].selected.size(), system.config.sparse ? 3u : 0u);
      }
    }
  }
}

// Both cases must come up above, or the comparison says nothing.
TEST(Recall, some_evidence_is_selected_and_some_is_not) {
  nn::AttentionConfig config = four_systems().back().config;
  ASSERT_TRUE(config.sparse);
  config.budget = {.mode = BudgetMode::fixed, .base = 8, .min = 1, .max = 8};
  nn::Model model = recall_model(config);
  int selected = 0, all = 0;
  for (const Answer& answer : ask(model, some_questions())) {
    for (const bool layer : answer.selected) selected += layer;
    all += static_cast<int>(answer.selected.size());
  }
  EXPECT_GT(selected, 0);
  EXPECT_LT(selected, all);
}

TEST(Recall, training_mode_and_running_means_stay) {
  nn::Model model = recall_model(four_systems().back().config);
  model->train();
  const std::vector<Tensor> before = nn::testing::mean_variances(model);
  ask(model, some_questions());
  EXPECT_TRUE(model->is_training());
  const std::vector<Tensor> after = nn::testing::mean_variances(model);
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(before[i].equal(after[i]));
}

TEST(Recall, wrong_questions_are_refused) {
  nn::Model model = recall_model(four_systems().front().config);
  EXPECT_THROW(ask(model, {{.tokens = {1, 2}, .answer_tokens = 2}}), Error);
  EXPECT_THROW(ask(model, {{.tokens = {1, 2}, .answer_tokens = 0}}), Error);
  EXPECT_THROW(ask(model, {{.tokens = {1, 2, 3}, .evidence = 2}}), Error);
  EXPECT_THROW(ask(model, {{.tokens = {1, kVocabulary}}}), Error);
  EXPECT_TRUE(ask(model, {}).empty());
}

}  // namespace
}  // namespace gsa::eval
