#include "demo/material.h"

#include <algorithm>

#include "data/dataset.h"
#include "data/stories.h"
#include "gsa/error.h"

namespace gsa::demo {
namespace {

constexpr std::int64_t kVocabulary = 1024;
constexpr int kTokenizerLines = 300, kLineSentences = 30;  // enough for every word to become a token
constexpr double kDepths[] = {0, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9, 1};

}  // namespace

std::unique_ptr<data::Tokenizer> make_tokenizer(std::uint64_t seed) {
  data::Stories stories(seed);
  data::SentencePieceTraining training{.lines = {}, .vocab_size = kVocabulary, .threads = 1};
  for (int i = 0; i < kTokenizerLines; ++i) training.lines.push_back(stories.story(kLineSentences));
  return data::sentencepiece_tokenizer(data::train_sentencepiece(training), "the demo's tokenizer");
}

void write_stories(const std::filesystem::path& folder, const data::Tokenizer& tokenizer, std::uint64_t seed,
                   std::int64_t count) {
  data::Stories stories(seed);
  data::DatasetWriter writer(folder, tokenizer);
  for (std::int64_t i = 0; i < count; ++i) writer.add_document(stories.story(kLength - 2, tokenizer));
  writer.finish();
}

Needles make_needles(const data::Tokenizer& tokenizer, std::uint64_t seed, std::int64_t each) {
  data::Stories stories(seed);
  Needles needles;
  needles.depths.assign(std::begin(kDepths), std::end(kDepths));
  needles.each = each;
  for (const double depth : kDepths) {
    for (std::int64_t i = 0; i < each; ++i) {
      const data::Needle needle = stories.needle(depth, kLength - 1, tokenizer);
      std::vector<std::int32_t> ids = {tokenizer.bos()};
      tokenizer.encode(needle.prompt + needle.answer, ids);
      eval::Question question;
      question.tokens.assign(ids.begin(), ids.end());
      question.answer_tokens = static_cast<std::int64_t>(ids.size()) - 1 - needle.tokens;
      question.evidence = 1 + needle.tokens - needle.distance;
      needles.questions.push_back(std::move(question));
      needles.asked.push_back({needle.needle, needle.question, needle.answer.substr(1), needle.distance});
    }
  }
  return needles;
}

std::vector<Depth> recall_by_depth(const Needles& needles, const std::vector<eval::Answer>& answers) {
  if (answers.size() != needles.questions.size()) {
    bad_argument("demo", "answers", concat("one a question, ", needles.questions.size()),
                 concat(answers.size()));
  }
  std::vector<Depth> result;
  std::size_t next = 0;
  for (const double depth : needles.depths) {
    Depth sum{.depth = depth, .questions = needles.each};
    for (std::int64_t i = 0; i < needles.each; ++i, ++next) {
      const eval::Answer& answer = answers[next];
      const bool selected =
          answer.selected.empty() ||
          std::any_of(answer.selected.begin(), answer.selected.end(), [](bool b) { return b; });
      sum.distance += static_cast<double>(needles.asked[next].distance);
      sum.recall += answer.right ? 1 : 0;
      sum.selected += selected ? 1 : 0;
    }
    const auto count = static_cast<double>(needles.each);
    sum.distance /= count;
    sum.recall /= count;
    sum.selected /= count;
    result.push_back(sum);
  }
  return result;
}

}  // namespace gsa::demo
